"""Datasets on disk: eight files, an honest manifest, the same bytes every time, and a fingerprint of what they hold."""

import dataclasses
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import config
import daft
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from harness.data import dataset, generator, storage
from harness.data.prompts import Shape
from harness.data.storage import StorageError
from vllm.benchmarks.datasets import PrefixRepetitionRandomDataset

SUITE = Path(__file__).parents[1] / "benchmarking/vllm"
SHAPE = Shape(rows=100, prefixes=3, prefix_len=32, suffix_len=32)


@pytest.fixture(scope="module")
def made(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset's folder."""
    folder = tmp_path_factory.mktemp("datasets")
    generator.make(SHAPE, tokenizer, str(folder), check_all=True)
    return folder / "100_0-5_3.parquet"


def bytes_below(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def table_of(path: Path) -> pa.Table:
    return pa.Table.from_batches(dataset.read_batches(path, ["id", "prompt", "prompt_len", "prefix_id"]))


def fingerprint_of(path: Path) -> str:
    return dataset.fingerprint(dataset.read_batches(path, ["id", "prompt"]))


def generate(folder: Path, model_folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as on another machine; its last line on stderr is the memory that it took at most, in KB."""
    other = {"PYTHONHASHSEED": "1", "LC_ALL": "C", "ARROW_USER_SIMD_LEVEL": "NONE", "OMP_NUM_THREADS": "1"}
    knobs = {"BENCH_MODEL_NAME": str(model_folder), "BENCH_DATASETS_PATH": str(folder)}
    code = (
        "import atexit, resource, runpy, sys\n"
        "atexit.register(lambda: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr))\n"
        "runpy.run_module('harness.data.generator', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", code, *options]
    return subprocess.run(
        command, cwd=SUITE, env=os.environ | other | knobs, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (Shape(200_000, 512, 256, 256), "200k_0-5_512"),
        (Shape(200_000, 4096, 256, 256), "200k_0-5_4096"),
        (Shape(200_000, 0, 0, 512), "200k_0"),
        (Shape(400, 16, 256, 256), "400_0-5_16"),
        (Shape(1500, 8, 384, 128), "1500_0-75_8"),
    ],
)
def test_datasets_are_named_as_published(shape: Shape, name: str) -> None:
    assert generator.name(shape) == name


def test_a_dataset_is_eight_files_that_every_reader_reads_in_full(made: Path) -> None:
    assert sorted(path.name for path in made.iterdir()) == [f"part-{i}.parquet" for i in range(8)]
    assert table_of(made).column("id").to_pylist() == list(range(100))
    assert pyarrow.dataset.dataset(made).count_rows() == 100
    assert daft.read_parquet(str(made)).count_rows() == 100


def test_the_manifest_says_what_the_files_hold(made: Path) -> None:
    manifest = dataset.read_manifest(made)
    table = table_of(made)
    assert manifest is not None
    assert manifest == manifest | {
        "name": "100_0-5_3",
        "complete": True,
        "files": 8,
        "rows_asked": 100,
        "rows": 100,
        "rows_dropped": 0,
        "rows_per_prefix": {"min": 33, "max": 34},
        "prompt_len_asked": 64,
        "prompt_len_min": 64,
        "prompt_len_max": 64,
        "prompts_off_length": 0,
        "lengths_checked": 100,
        "prompt_bytes": sum(len(text.encode()) for text in table.column("prompt").to_pylist()),
        "fingerprint": fingerprint_of(made),
    }


def test_another_process_writes_the_same_bytes(made: Path, model_folder: Path, tmp_path: Path) -> None:
    generate(tmp_path, model_folder, "--rows", "100", "--prefixes", "3", "--prompt-len", "64", "--check-all")
    assert bytes_below(tmp_path) == bytes_below(made.parent)


def test_no_path_of_this_machine_is_in_the_files(made: Path, model_folder: Path) -> None:
    assert str(model_folder.parent) not in made.with_name("100_0-5_3.manifest.json").read_text()


def test_a_whole_dataset_is_left_alone_and_a_broken_or_other_one_is_made_again(tokenizer: Any, tmp_path: Path) -> None:
    def make(seed: int = 42) -> dict[str, int]:
        shape = Shape(SHAPE.rows, SHAPE.prefixes, SHAPE.prefix_len, SHAPE.suffix_len, seed)
        generator.make(shape, tokenizer, str(tmp_path))
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}

    first, content = make(), bytes_below(tmp_path)
    assert make() == first
    (tmp_path / "100_0-5_3.parquet" / "part-3.parquet").unlink()
    assert make() != first
    assert bytes_below(tmp_path) == content
    make(seed=7)
    assert bytes_below(tmp_path) != content


def test_an_interrupted_dataset_is_made_again(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> int:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(generator, "check_lengths", full_disk)
        with pytest.raises(StorageError, match="No space left"):
            generator.make(SHAPE, tokenizer, str(tmp_path))
    assert json.loads((tmp_path / "100_0-5_3.manifest.json").read_text())["complete"] is False
    assert generator.make(SHAPE, tokenizer, str(tmp_path))["complete"] is True
    assert len(table_of(tmp_path / "100_0-5_3.parquet")) == 100


def test_files_of_an_older_dataset_do_not_stay_among_the_new_ones(tokenizer: Any, tmp_path: Path) -> None:
    generator.make(SHAPE, tokenizer, str(tmp_path))
    folder = tmp_path / "100_0-5_3.parquet"
    pq.write_table(table_of(folder), folder / "part-8.parquet")
    generator.make(SHAPE, tokenizer, str(tmp_path))
    assert len(table_of(folder)) == 100


def test_somebody_elses_data_is_never_overwritten(tokenizer: Any, tmp_path: Path) -> None:
    folder = tmp_path / "100_0-5_3.parquet"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1]}), folder / "theirs.parquet")
    with pytest.raises(StorageError, match="without a manifest"):
        generator.make(SHAPE, tokenizer, str(tmp_path))
    assert [path.name for path in tmp_path.rglob("*")] == ["100_0-5_3.parquet", "theirs.parquet"]


def test_the_fingerprint_ignores_order_and_encoding(made: Path, tmp_path: Path) -> None:
    table = table_of(made)
    shuffled = table.take(random.Random(1).sample(range(100), 100))
    pq.write_table(shuffled, tmp_path / "one.parquet", compression="none", row_group_size=7)
    assert fingerprint_of(tmp_path / "one.parquet") == fingerprint_of(made)


def test_the_fingerprint_sees_a_lost_doubled_or_swapped_row(made: Path) -> None:
    table = table_of(made)
    swapped = table.set_column(0, "id", pa.array([1, 0, *range(2, 100)]))
    others = [table.slice(1), pa.concat_tables([table, table.slice(0, 1)]), swapped]
    seen = {dataset.fingerprint(other.to_batches()) for other in [table, *others]}
    assert len(seen) == 4


def test_the_published_sampler_gives_its_own_prompts_and_the_manifest_shows_what_it_lost(
    tokenizer: Any, tmp_path: Path
) -> None:
    # Lengths at which this tokenizer's texts miss the target now and then.
    shape = Shape(rows=100, prefixes=3, prefix_len=32, suffix_len=32)
    manifest = generator.make(shape, tokenizer, str(tmp_path), sampler="published")
    rows = table_of(tmp_path / "100_0-5_3.parquet").to_pylist()
    plain = PrefixRepetitionRandomDataset(random_seed=42).sample(
        tokenizer, 100, prefix_len=32, suffix_len=32, num_prefixes=3
    )
    lengths = [len(tokenizer.encode(row["prompt"], add_special_tokens=False)) for row in rows]
    assert [row["prompt"] for row in rows] == [request.prompt for request in plain]
    assert [row["prompt_len"] for row in rows] == lengths
    assert manifest["rows_per_prefix"] == {"min": 33, "max": 33}
    assert (manifest["rows_asked"], manifest["rows"], manifest["rows_dropped"]) == (100, 99, 1)
    assert manifest["prompts_off_length"] == sum(length != 64 for length in lengths) > 0
    assert (manifest["prompt_len_min"], manifest["prompt_len_max"]) == (min(lengths), max(lengths))


def test_published_prompts_of_one_prefix_id_share_their_start(tokenizer: Any, tmp_path: Path) -> None:
    generator.make(SHAPE, tokenizer, str(tmp_path), sampler="published")
    starts: dict[int, set[str]] = {}
    for row in table_of(tmp_path / "100_0-5_3.parquet").to_pylist():
        starts.setdefault(row["prefix_id"], set()).add(row["prompt"][:20])
    assert [len(texts) for texts in starts.values()] == [1, 1, 1]
    assert len(set.union(*starts.values())) == 3


def test_the_published_sampler_makes_prompts_without_prefixes_too(tokenizer: Any, tmp_path: Path) -> None:
    manifest = generator.make(Shape(20, 0, 0, 32), tokenizer, str(tmp_path), sampler="published")
    rows = table_of(tmp_path / "20_0.parquet").to_pylist()
    assert (manifest["rows"], manifest["rows_per_prefix"]) == (20, None)
    assert len({row["prompt"][:20] for row in rows}) == 20


def test_the_command_makes_200_000_prompts_in_less_than_4_gb(model_folder: Path, tmp_path: Path) -> None:
    done = generate(tmp_path, model_folder, "--prefixes", "0")
    manifest = json.loads(done.stdout)
    assert (manifest["name"], manifest["rows"], manifest["prompt_len_min"]) == ("200k_0", 200_000, 512)
    assert int(done.stderr.split()[-1]) * 1024 < 4e9
    assert fingerprint_of(tmp_path / "200k_0.parquet") == manifest["fingerprint"]
    shutil.rmtree(tmp_path)


def test_the_command_says_in_one_line_what_it_cannot_make(model_folder: Path, tmp_path: Path) -> None:
    done = generate(tmp_path, model_folder, "--rows", "10", "--prefixes", "16")
    assert done.returncode != 0
    assert "generator: 10 rows over 16 prefixes: expected at least one row a prefix" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--prefixes", "-1"), "argument --prefixes: expected a whole number of at least 0, found '-1'"),
        (("--prefixes", "4", "--rows", "0"), "argument --rows: expected a whole number of at least 1, found '0'"),
        (("--prefixes", "4", "--shared", "nan"), "argument --shared: expected a finite number of at least 0"),
        (("--prefixes", "4", "--shared", "1"), "expected a suffix"),
    ],
)
def test_the_command_refuses_arguments_that_make_no_dataset(
    model_folder: Path, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    done = generate(tmp_path, model_folder, *arguments)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_says_in_one_line_that_there_is_no_tokenizer(tmp_path: Path) -> None:
    done = generate(tmp_path, tmp_path / "nowhere", "--prefixes", "4", "--rows", "8")
    assert done.returncode != 0
    assert f"generator: expected a tokenizer in MODEL_NAME {tmp_path / 'nowhere'}, found: " in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_sampler_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sampler 'sharegpt': expected one of"):
        generator.make(SHAPE, tokenizer, str(tmp_path), sampler="sharegpt")


def test_a_manifest_that_cannot_be_read_is_named(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "100_0-5_3.manifest.json").write_text("{")
    with pytest.raises(StorageError, match=r"100_0-5_3\.parquet \(manifest\)"):
        generator.make(SHAPE, tokenizer, str(tmp_path))


@pytest.mark.parametrize(("files", "seed"), [(0, 42), (-1, 42), (8, -1)])
def test_no_files_and_no_seed_are_refused_by_their_knobs(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, seed: int
) -> None:
    monkeypatch.setattr(config, "DATASET_FILES", files)
    with pytest.raises(ValueError, match=f"DATASET_FILES of at least 1 and .* found {files} and {seed}"):
        generator.make(dataclasses.replace(SHAPE, seed=seed), tokenizer, str(tmp_path))


@pytest.mark.parametrize("url", ["s3://", "s3:///", "gs://bucket/x"])
def test_a_url_without_a_bucket_or_of_another_store_says_what_was_expected(url: str) -> None:
    with pytest.raises(StorageError, match="expected a local path or s3://bucket/path"):
        storage.filesystem(url)


def test_a_missing_column_is_named_with_those_found(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "text": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"expected columns \['id', 'prompt'\], found \['id', 'text'\]"):
        list(dataset.read_batches(tmp_path / "x.parquet", ["id", "prompt"]))


@pytest.mark.parametrize("content", [None, b"", b"not parquet at all"])
def test_a_place_without_parquet_files_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(StorageError, match=str(tmp_path)):
        list(dataset.read_batches(tmp_path, ["id"]))


def test_readers_ignore_marker_files(made: Path, tmp_path: Path) -> None:
    pq.write_table(table_of(made), tmp_path / "part-0.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-0.parquet.crc").touch()
    assert len(table_of(tmp_path)) == 100


@pytest.mark.parametrize("name", ["data[1].parquet", "{x,y}.parquet", "back\\slash.parquet"])
def test_a_path_that_daft_takes_for_a_pattern_is_refused(name: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "prompt": ["a"]}), tmp_path / name)
    with pytest.raises(FileNotFoundError):
        daft.read_parquet(str(tmp_path / name)).collect()
    with pytest.raises(ValueError, match=r"expected a path without .*, which Daft takes for a pattern"):
        list(dataset.read_batches(tmp_path / name, ["id", "prompt"]))


UNKNOWN = {"time32": pa.time32("ms"), "decimal": pa.decimal256(50, 2), "nested": pa.struct([("at", pa.time32("s"))])}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_column_that_daft_cannot_read_is_refused_although_no_strategy_uses_it(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": [1], "prompt": ["a"], name: pa.nulls(1, UNKNOWN[name])}), file)
    with pytest.raises(Exception, match="Unsupported Arrow DataType"):
        daft.read_parquet(str(file)).select("id", "prompt").collect()
    with pytest.raises(ValueError, match=f"of types that Daft 0.7.26 knows, used or not, found {name} of type "):
        list(dataset.read_batches(file, ["id", "prompt"]))


def test_columns_of_other_types_that_daft_reads_are_no_obstacle(tmp_path: Path) -> None:
    kinds = [pa.time64("us"), pa.decimal128(20, 2), pa.float16(), pa.duration("s"), pa.struct([("time32", pa.int8())])]
    others = {str(kind): pa.nulls(1, kind) for kind in kinds}
    pq.write_table(pa.table({"id": [1], "prompt": ["a"], **others}), tmp_path / "x.parquet")
    assert daft.read_parquet(str(tmp_path / "x.parquet")).select("id", "prompt").count_rows() == 1
    assert len(list(dataset.read_batches(tmp_path / "x.parquet", ["id", "prompt"]))) == 1
