"""advise.py on files as people have them: what it says, what it refuses, and what it leaves out."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import advise
import config
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from harness import overrides
from harness.data import dataset, generator, storage
from harness.data.prompts import Shape
from harness.data.storage import StorageError
from harness.overrides import SUITE_DIR
from harness.prediction import forecast, forecast_chart, prompt_column, prompt_set, sparse, study, tokenizing
from harness.target_length import target_length
from test_roofline import QWEN3_8B


@pytest.fixture(scope="session")
def qwen_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3-8B's sizes with the local model's tokenizer."""
    folder = tmp_path_factory.mktemp("qwen3-8b")
    (folder / "config.json").write_text(json.dumps(QWEN3_8B))
    (folder / "tokenizer.json").write_bytes((model_folder / "tokenizer.json").read_bytes())
    return folder


@pytest.fixture
def run(qwen_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """advise.py's main on arguments; returns what it prints."""
    monkeypatch.setattr(prompt_set, "CACHE", tmp_path / "tokens")
    monkeypatch.setattr(config, "NAIVE_PARTITIONS", 1)
    monkeypatch.setattr(config, "CONTINUOUS_BATCH_SIZE", 16)

    def call(data: str | Path, *arguments: str) -> str:
        fixed = ["advise.py", str(data), "--model", str(qwen_folder), "--engines", "2", "--output-len", "16"]
        monkeypatch.setattr(sys, "argv", [*fixed, *arguments])
        advise.main()
        return capsys.readouterr().out

    return call


@pytest.fixture
def refused(run: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    """What advise.py says on stderr as it refuses, with the exit code of a refused run."""

    def call(data: str | Path, *arguments: str) -> str:
        with pytest.raises(SystemExit) as exit_:
            run(data, *arguments)
        assert exit_.value.code == overrides.REFUSED
        said = capsys.readouterr().err
        assert "refused: " in said
        return said

    return call


def texts(rows: int, groups: int) -> list[str]:
    """Prompts of 48 shared and 16 own words, each one token of the local model."""
    syllables = [consonant + vowel for consonant in "bdfgklmnp" for vowel in "aeiou"]

    def word(number: int) -> str:
        return " " + syllables[number // 45 % 45] + syllables[number % 45]

    return [
        "".join(word(row % groups * 48 + i) for i in range(48)) + "".join(word(2000 - row * 7 - i) for i in range(16))
        for row in range(rows)
    ]


def write(file: Path, **columns: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)
    return file


def test_shared_prefixes_are_found_counted_and_forecast(run: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "my.parquet", id=range(200), prompt=texts(200, 10))
    report = json.loads(run(file, "--json", "--price", "3", "--plot", str(tmp_path / "rates.svg")))
    found = report["dataset"]
    # Three blocks of 16 shared by ten groups; each group's first prompt has to compute them.
    assert (found["rows"], found["tokens"], found["shared_prefixes"]) == (200, 200 * 64, 10)
    assert found["working_set_tokens"] == 10 * 48
    assert found["possible_hits"] == 190 * 48
    rates = {row["strategy"]: row["hit_rate"] for row in report["strategies"]}
    assert set(rates) == {"naive-batch", "naive-batch-sorted", "continuous-batch", "continuous-batch-sorted",
                          "prefix-bucketing", "ray-data", "prefix-planned", "perfect-placement"}  # fmt: skip
    assert max(rates.values()) <= found["possible_hit_rate"]
    # Ten groups on two engines: each has to be computed twice in arrival order, once when placed well.
    assert rates["continuous-batch"] < rates["perfect-placement"]
    assert report["floor"]["wall_s"] <= min(row["wall_s"] for row in report["strategies"])
    assert all(row["lowest"] <= row["speedup"] <= row["highest"] for row in report["strategies"])
    svg = (tmp_path / "rates.svg").read_text()
    assert svg.startswith("<svg")
    assert svg.count("<polyline") == 8
    text = "\n".join(report["text"])
    assert "200 prompts share 10 prefixes of 48 tokens" in text
    assert "at 3 an hour" in text


def test_prompts_that_share_nothing_have_nothing_to_gain(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tokenising before each batch, which is naive-batch's alone, would be a gain; its measured time is noise here.
    monkeypatch.setattr(tokenizing, "seconds_a_token", lambda *_: 0.0)
    out = run(write(tmp_path / "my.parquet", id=range(40), prompt=texts(40, 40)), "--engines", "1")
    assert "no two prompts share a block" in out
    assert "Nothing to be gained" in out
    assert "at most 0.0% of their tokens" in out


def test_a_cache_too_small_for_the_prefixes_makes_order_pay(run: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "my.parquet", id=range(800), prompt=texts(800, 40))
    advice = json.loads(run(file, "--json", "--engines", "1", "--kv-tokens", "400"))["advice"]
    assert advice["best"] in ("naive-batch-sorted", "continuous-batch-sorted", "prefix-bucketing", "prefix-planned")
    assert advice["order_gain"] > 1.1


def test_nulls_blanks_and_empty_files_are_counted_and_left_out(run: Any, tmp_path: Path) -> None:
    good = texts(30, 3)
    write(tmp_path / "set/a.parquet", id=range(33), prompt=[*good, None, "", " \n"])
    write(tmp_path / "set/b.parquet", id=pa.array([], pa.int64()), prompt=pa.array([], pa.string()))
    (tmp_path / "set/c.parquet").touch()
    out = run(tmp_path / "set")
    assert "30 prompts" in out
    assert "left out: 1 null, 2 blank" in out
    assert "2 of 3 files are empty" in out


def test_prompts_too_long_for_the_engine_are_counted_and_left_out(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "MAX_MODEL_LEN", 100)
    file = write(tmp_path / "my.parquet", id=range(21), prompt=[*texts(20, 2), " bada" * 85])
    out = run(file)
    assert "20 prompts" in out
    assert "1 too long for MAX_MODEL_LEN" in out


def test_a_dataset_without_any_usable_prompt_is_no_crash(run: Any, tmp_path: Path) -> None:
    out = run(write(tmp_path / "my.parquet", id=[1, 2], prompt=pa.array([None, " "], pa.string())))
    assert "left out: 1 null, 1 blank" in out
    assert "Nothing to forecast" in out


def test_other_column_names_and_types_work(run: Any, tmp_path: Path) -> None:
    column = pa.array(texts(20, 2), pa.large_string())
    file = write(tmp_path / "my.parquet", question=column, key=[f"k{i}" for i in range(20)])
    assert "20 prompts" in run(file, "--column", "question", "--id-column", "key")
    assert "20 prompts" in run(file, "--column", "question", "--no-id")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"id": [1], "text": ["a"]},
            r"expected columns \['prompt', 'id'\], found \['id', 'text'\]. Name others with --column and --id-column",
        ),
        ({"id": [1], "prompt": [3]}, r"expected text in column 'prompt', found int64\. Name another with --column"),
    ],
)
def test_a_file_without_a_column_of_text_is_refused(
    refused: Any, tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    assert re.search(message, refused(write(tmp_path / "my.parquet", **columns)))


def test_no_file_and_a_damaged_file_are_refused_by_name(refused: Any, tmp_path: Path) -> None:
    assert "absent" in refused(tmp_path / "absent")
    (tmp_path / "bad.parquet").write_text("not Parquet at all")
    assert "bad.parquet" in refused(tmp_path / "bad.parquet")


@pytest.mark.usefixtures("s3_endpoint")
def test_a_folder_on_s3_reads_as_a_local_one_does(tmp_path: Path) -> None:
    local = write(tmp_path / "set" / "a.parquet", id=range(20), prompt=texts(20, 2))
    fs, path = storage.filesystem("s3://data/set")
    pafs.copy_files(str(local), f"{path}/a.parquet", destination_filesystem=fs)
    there, here = prompt_column.read("s3://data/set"), prompt_column.read(tmp_path / "set")
    assert there.texts.equals(here.texts)
    assert (there.fingerprint, there.content_key) == (here.fingerprint, here.content_key)
    with pytest.raises(StorageError, match="s3://data/none"):
        prompt_column.read("s3://data/none")


def test_the_fingerprint_is_that_of_the_suites_records(tokenizer: Any, tmp_path: Path) -> None:
    manifest = generator.make(Shape(50, 3, 16, 16), tokenizer, str(tmp_path))
    url = f"{tmp_path}/{manifest['name']}.parquet"
    assert prompt_column.read(url).fingerprint == manifest["fingerprint"]
    assert dataset.fingerprint(dataset.read_batches(url, ["id", "prompt"])) == manifest["fingerprint"]


def test_tokens_are_kept_and_belong_to_the_texts_in_their_order(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tokenizing.load_tokenizer(str(model_folder))
    write(tmp_path / "a.parquet", prompt=texts(30, 3))
    write(tmp_path / "b.parquet", prompt=texts(30, 3)[::-1])
    first, turned = (prompt_column.read(tmp_path / name, id_column=None) for name in ("a.parquet", "b.parquet"))
    cold = tokenizing.tokenize(first.texts, first.content_key, tokenizer, tmp_path)
    assert "tokenising [#" in capsys.readouterr().err
    warm = tokenizing.tokenize(first.texts, first.content_key, tokenizer, tmp_path)
    assert capsys.readouterr().err == ""
    other = tokenizing.tokenize(turned.texts, turned.content_key, tokenizer, tmp_path)
    for tokens, source in ((cold, first), (warm, first), (other, turned)):
        expected = [tokenizer.encode(text).ids for text in source.texts.to_pylist()]
        pairs = zip(tokens.starts, tokens.starts[1:], strict=False)
        assert [tokens.ids[begin:end].tolist() for begin, end in pairs] == expected


def test_an_interrupted_tokenisation_is_not_taken_for_a_whole_one(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizing.load_tokenizer(str(model_folder))
    column = prompt_column.read(write(tmp_path / "a.parquet", prompt=texts(30, 3)), id_column=None)

    def interrupted(*_: object) -> Any:
        yield from list(real(*_))[:1]
        raise KeyboardInterrupt

    real = tokenizing._encode
    monkeypatch.setattr(tokenizing, "CHUNK", 10)
    monkeypatch.setattr(tokenizing, "_encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tokenizing.tokenize(column.texts, column.content_key, tokenizer, tmp_path)
    monkeypatch.setattr(tokenizing, "_encode", real)
    assert len(tokenizing.tokenize(column.texts, column.content_key, tokenizer, tmp_path).starts) == 31


@pytest.mark.parametrize("kind", ["*.int32", "*.lengths.npy"])
@pytest.mark.parametrize("kept", [0, 50])
def test_kept_tokens_that_were_cut_short_are_made_again(
    model_folder: Path, tmp_path: Path, kind: str, kept: int
) -> None:
    tokenizer = tokenizing.load_tokenizer(str(model_folder))
    column = prompt_column.read(write(tmp_path / "a.parquet", prompt=texts(30, 3)), id_column=None)
    whole = tokenizing.tokenize(column.texts, column.content_key, tokenizer, tmp_path)
    expected = whole.ids.tolist()
    del whole
    damaged = next(tmp_path.glob(kind))
    damaged.write_bytes(damaged.read_bytes()[:kept])
    again = tokenizing.tokenize(column.texts, column.content_key, tokenizer, tmp_path)
    assert again.ids.tolist() == expected


def test_where_tokens_cannot_be_kept_it_says_so_and_goes_on(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "my.parquet", id=list(range(8)), prompt=texts(8, 2))
    expected = run(file)
    monkeypatch.setattr(prompt_set, "CACHE", Path("/proc/tokens"))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert run(file).splitlines()[:6] == expected.splitlines()[:6]
    said = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "tokens are not kept, so the next time takes as long: [Errno " in said


def test_a_folder_without_a_tokenizer_or_config_is_refused(tmp_path: Path, refused: Any) -> None:
    with pytest.raises(ValueError, match=r"expected tokenizer\.json, found \[\]"):
        tokenizing.load_tokenizer(str(tmp_path))
    file = write(tmp_path / "data" / "my.parquet", id=[1], prompt=["a b c"])
    assert "expected config.json" in refused(file, "--model", str(tmp_path))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("{", "Expecting property name"),
        ("[]", "list"),
        ("{}", "found no num_hidden_layers"),
        (json.dumps(QWEN3_8B | {"num_attention_heads": 0}), "expected sizes of at least 1"),
        (json.dumps(QWEN3_8B | {"hidden_size": "many"}), "expected the config.json of a decoder"),
        (json.dumps({key: value for key, value in QWEN3_8B.items() if key != "vocab_size"}), "found no 'vocab_size'"),
    ],
)
def test_a_model_that_is_none_is_refused_by_its_file(refused: Any, tmp_path: Path, content: str, found: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(content)
    said = refused(write(tmp_path / "my.parquet", id=[1], prompt=["a b c"]), "--model", str(tmp_path / "model"))
    assert found in said
    assert "give a hub id or the folder of a model" in said


def test_a_model_that_is_nowhere_and_a_broken_tokenizer_are_refused(refused: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "my.parquet", id=[1], prompt=["a b c"])
    for name in (str(tmp_path / "absent"), "nobody/has-such-a-model"):
        assert f"expected the model {name}, found no such folder" in refused(file, "--model", name)
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert f"{tmp_path}: expected a tokenizer" in refused(file, "--model", str(tmp_path))


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"MAX_NUM_SEQS": 0}, "expected MAX_NUM_SEQS of at least 1, found 0. Set MAX_NUM_SEQS"),
        ({"BLOCK_SIZE": 0}, "expected BLOCK_SIZE of at least 1, found 0"),
        ({"NAIVE_BATCH_SIZE": 0, "RAY_BLOCKS": 0}, "expected RAY_BLOCKS of at least 1"),
        ({"GPU_MEMORY_UTILIZATION": 2.0}, "expected GPU_MEMORY_UTILIZATION of 0 to 1, found 2"),
        ({"OUTPUT_LEN_DISTRIBUTION": "normal"}, "found 'normal'"),
        ({"MAX_MODEL_LEN": 16}, "expected outputs of 1 to 15 tokens"),
        ({"ENABLE_PREFIX_CACHING": False}, "expected ENABLE_PREFIX_CACHING true, found false"),
        ({"OUTPUT_LEN_DISTRIBUTION": "uniform"}, "--output-len 16: expected none, since OUTPUT_LEN_DISTRIBUTION"),
    ],
)
def test_knobs_that_no_run_would_start_with_or_no_forecast_follows_are_refused(
    refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knobs: dict[str, Any], said: str
) -> None:
    for name, value in knobs.items():
        monkeypatch.setattr(config, name, value)
    assert said in refused(write(tmp_path / "my.parquet", id=[1], prompt=["a b c"]))


def test_more_than_can_be_counted_or_held_in_memory_is_refused_by_name(
    refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "MAX_MODEL_LEN", 2**31 - 1)
    file = write(tmp_path / "my.parquet", id=range(40), prompt=["a b c"] * 40)
    said = refused(file, "--output-len", "2000000000", "--kv-tokens", str(2**31 - 1))
    assert "expected prompts and outputs of at most 2,147,483,647 blocks in all, found " in said
    assert "of 16 tokens; lower OUTPUT_LEN or the number of rows, or raise BLOCK_SIZE" in said
    monkeypatch.setattr(study, "run", lambda *_: sparse.zeros(2**55, np.int64))
    said = refused(file)
    assert "found too little (Unable to allocate 288,230,376,151,711,744 bytes). Lower the number of rows, " in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kv-tokens", "9" * 20], "argument --kv-tokens: expected a whole number of at most 2,147,483,647, found"),
        (["--engines", "0"], "argument --engines: expected a whole number of at least 1, found '0'"),
        (["--kv-tokens", "many"], "argument --kv-tokens: expected a whole number of at least 1, found 'many'"),
        (["--price", "nan"], "argument --price: expected a finite number of at least 0, found 'nan'"),
        (["--start-s", "-1"], "argument --start-s: expected a finite number of at least 0, found '-1'"),
        (["--plot", "/absent/rates.svg"], "expected a file to write in a folder that exists, found no folder /absent"),
        (["--plot", "/"], "found a folder of that name"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_by_name(
    run: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run("my.parquet", *arguments)
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


def test_a_replay_says_at_once_that_it_began(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    replayed = forecast.forecast

    def noted(*arguments: Any) -> Any:
        said.append(sys.stderr.getvalue())  # type: ignore[attr-defined]
        return replayed(*arguments)

    monkeypatch.setattr(forecast, "forecast", noted)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    run(write(tmp_path / "my.parquet", id=list(range(8)), prompt=texts(8, 2)))
    assert "replaying [" in said[0]


def test_a_plot_that_cannot_be_written_after_all_is_refused(
    refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    file = write(tmp_path / "my.parquet", id=range(20), prompt=texts(20, 2))
    said = refused(file, "--plot", str(tmp_path / "rates.svg"))
    assert "--plot: expected a file that can be written, found [Errno 28] No space left" in said


def test_repeated_ids_are_counted_and_said_because_runs_refuse_them(run: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "my.parquet", id=[1, 1, 1, 2, 3, 3, *range(4, 18)], prompt=texts(20, 2))
    assert "2 ids in more than one row: runs refuse that; give every row its own" in run(file)
    assert json.loads(run(file, "--json"))["dataset"]["repeated_ids"] == 2
    assert "more than one row" not in run(file, "--no-id")
    one = write(tmp_path / "one.parquet", id=[1, 1, *range(2, 20)], prompt=texts(20, 2))
    assert "  1 id in more than one row" in run(one)


def test_rows_without_an_id_are_counted_and_said_because_runs_refuse_them(run: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "my.parquet", id=[None, None, *range(2, 20)], prompt=texts(20, 2))
    assert "  2 rows without an id: runs refuse that; give every row its own" in run(file)
    assert json.loads(run(file, "--json"))["dataset"]["null_ids"] == 2
    assert json.loads(run(file, "--json", "--no-id"))["dataset"]["null_ids"] == 0


def test_the_kv_cache_is_the_one_that_the_engines_are_given(
    run: Any, refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "my.parquet", prompt=texts(40, 4))
    # 147,456 bytes a token of Qwen3-8B; one block of 16 is vLLM's own.
    monkeypatch.setattr(config, "KV_CACHE_MEMORY_BYTES", 26 * 16 * 147_456)
    assert json.loads(run(file, "--no-id", "--json"))["kv_tokens"] == 400
    assert json.loads(run(file, "--no-id", "--json", "--kv-tokens", "800"))["kv_tokens"] == 800
    unfit = "no engine starts so: its KV cache must hold one request of MAX_MODEL_LEN = 4,096 tokens"
    assert unfit in run(file, "--no-id")
    monkeypatch.setattr(config, "MAX_MODEL_LEN", 400)
    assert unfit[:20] not in run(file, "--no-id")
    monkeypatch.setattr(config, "KV_CACHE_MEMORY_BYTES", 3 * 16 * 147_456)
    assert "expected prompt and output to fit in the KV cache of 2 blocks" in refused(file, "--no-id")


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("groups", [1, 1000])
def test_what_is_said_of_few_rows_does_not_contradict_itself(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, groups: int
) -> None:
    monkeypatch.setattr(tokenizing, "seconds_a_token", lambda *_: 0.0)
    monkeypatch.setattr(config, "NAIVE_PARTITIONS", 32)
    monkeypatch.setattr(config, "CONTINUOUS_BATCH_SIZE", 512)
    out = run(write(tmp_path / "my.parquet", id=range(rows), prompt=texts(rows, min(rows, groups))))
    assert f"{rows} prompt{'s' * (rows > 1)}, " in out
    if rows == 1:
        # Every strategy does the same with one row, however many engines there are and whatever their cache.
        assert "Nothing to be gained" in out
        assert "The answer would be the same with 1/64 of the KV cache, " in out
        assert "Run " not in out
        assert "saves" not in out
        return
    # Static batches of one row lose to anything else: that is a gain, and neither order's nor the cache's.
    assert "Run ray-data: expected " in out
    assert "Requests a step, on average: " in out
    assert "NAIVE_PARTITIONS leaves its batches 1 of the prompts" in out
    assert "Sorting, bucketing and routing have nothing to gain" in out
    assert "the gain is not the cache's" in out
    assert "On so few prompts it saves " in out
    assert "prompts on it saves" not in out
    assert "finding the order" not in out
    changed = out.partition("With these another strategy would be the one to run:")[2].splitlines()[1:]
    assert changed
    assert not [line for line in changed if "ray-data" in line]


def test_an_order_that_costs_more_than_it_saves_is_not_left_standing_as_the_advice(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timely = advise.advice.advise
    monkeypatch.setattr(advise.advice, "advise", lambda *given: timely(*given[:5], 3600.0, given[6]))
    out = run(write(tmp_path / "my.parquet", id=range(256), prompt=texts(256, 64)), "--kv-tokens", "2048")
    assert re.search(r"^Keep naive-batch: (prefix|\S*-sorted)\S* is expected ", out, re.MULTILINE), out
    assert "but finding its order takes longer than it saves." in out
    assert "Run " not in out


def test_a_laptop_needs_neither_engines_nor_torch() -> None:
    engines = {"vllm", "ray", "daft", "torch", "transformers"}
    code = f"import sys, advise; print(sorted({engines} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=SUITE_DIR, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_chart_names_each_strategy_and_both_marks() -> None:
    svg = forecast_chart.draw({"one": [(100.0, 0.1), (1e6, 0.4)], "two": [(100.0, 0.2)]}, 5000, 2000, 0.5)
    for label in ("one", "two", "this GPU", "shared prefixes", "possible", "tokens of KV cache"):
        assert f">{label}</text>" in svg


def test_output_lengths_may_vary_by_prompt(qwen_folder: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "my.parquet", prompt=texts(30, 3))
    lengths = {"OUTPUT_LEN_DISTRIBUTION": "uniform", "OUTPUT_LEN_MIN": 3, "OUTPUT_LEN_MAX": 9}
    knobs = overrides.knob_values(config) | lengths
    loaded = prompt_set.load(file, str(qwen_folder), knobs, id_column_name=None, cache=None)
    prompts = np.split(loaded.tokens.ids, loaded.tokens.starts[1:-1])
    assert loaded.data.prompts.outputs.tolist() == [target_length(prompt, knobs) for prompt in prompts]
    assert (loaded.data.prompts.outputs.min(), loaded.data.prompts.outputs.max()) == (3, 9)


def test_where_output_lengths_vary_prompts_are_too_long_where_runs_refuse_them(
    qwen_folder: Path, tmp_path: Path
) -> None:
    """Also those whose own output would fit: a run refuses by the longest that any row may have."""
    file = write(tmp_path / "my.parquet", prompt=texts(30, 3))
    lengths = {"OUTPUT_LEN_DISTRIBUTION": "uniform", "OUTPUT_LEN_MIN": 3, "OUTPUT_LEN_MAX": 9}
    for most, too_long in ((64 + 9, 0), (64 + 8, 30)):
        knobs = overrides.knob_values(config) | lengths | {"MAX_MODEL_LEN": most}
        assert prompt_set.load(file, str(qwen_folder), knobs, id_column_name=None, cache=None).too_long == too_long
