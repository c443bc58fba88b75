"""Makes datasets: Parquet files in a folder (config.DATASET_FILES), local or S3, and a manifest beside it.

    python -m harness.data.generator --prefixes 512
    BENCH_PROFILE=local-cpu python -m harness.data.generator --prefixes 16 --rows 400

The first writes `200k_0-5_512.parquet/` and `200k_0-5_512.manifest.json` under config.DATASETS_PATH, for the tokenizer
of config.MODEL_NAME. The name gives rows, shared part of each prompt and number of prefixes; `200k_0` shares nothing.
A set that is there already, whole and with the same request, is left alone. Same seed, same pins, same bytes.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import config
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from harness import arguments, stdout
from harness.data import dataset, prompts, published, storage
from harness.data.dataset import Manifest
from harness.data.prompts import Shape

SAMPLERS = ("words", "published")
# Raised whenever the same request gives other prompts.
SAMPLER_VERSION = 1
# Prompts of each file that are encoded whole to check their length, unless all are; prompts.py says why few will do.
CHECKED_PER_FILE = 8
# Rows a row group: about 13 MB of prompts, so that readers stream in little memory.
ROW_GROUP_ROWS = 4096


def make(shape: Shape, tokenizer: Any, folder: str, sampler: str = "words", check_all: bool = False) -> Manifest:
    """Writes one dataset below `folder`, unless it is there, and returns its manifest.

    Raises ValueError if a prompt of sampler "words" misses its length, and StorageError if the place cannot be written
    or holds data without a manifest: only its owner may delete that.
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler {sampler!r}: expected one of {SAMPLERS}")
    if config.DATASET_FILES < 1 or shape.seed < 0:
        given = f"{config.DATASET_FILES} and {shape.seed}"
        raise ValueError(f"expected DATASET_FILES of at least 1 and DATASET_SEED of at least 0, found {given}")
    url = f"{folder}/{name(shape)}.parquet"
    head = {"name": name(shape), "request": request(shape, tokenizer, sampler)}
    found = dataset.read_manifest(url)
    fs, path = storage.filesystem(url)
    try:
        old_files = _data_files(fs, path)
        if found and found["complete"] and found["request"] == head["request"] and len(old_files) == _parts(shape):
            return found
        if old_files and not found:
            raise FileExistsError("expected an empty place, found data without a manifest; move or delete it first")
        # An unfinished set must not look finished, nor may it look like somebody else's.
        _write_manifest(fs, path, {**head, "complete": False})
        summary = _write(fs, path, shape, tokenizer, sampler, check_all)
        for file in sorted(set(old_files) - {_part(path, i) for i in range(summary["files"])}):
            fs.delete_file(file)
        manifest = {**head, "complete": True, **summary}
        _write_manifest(fs, path, manifest)
    except OSError as error:
        raise storage.failure(url, error) from None
    return manifest


def load_tokenizer() -> Any:
    """The tokenizer of config.MODEL_NAME. Raises ValueError, in one line, where transformers has none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(config.MODEL_NAME)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"expected a tokenizer in MODEL_NAME {config.MODEL_NAME}, found: {reason}") from None


def name(shape: Shape) -> str:
    """The published names: `200k_0-5_512` is 200,000 rows, half of each prompt shared, 512 prefixes."""
    rows = f"{shape.rows // 1000}k" if shape.rows % 1000 == 0 else str(shape.rows)
    shared = f"{shape.prefix_len / shape.prompt_len:.3g}".replace(".", "-")
    return f"{rows}_{shared}_{shape.prefixes}" if shape.prefixes else f"{rows}_0"


def request(shape: Shape, tokenizer: Any, sampler: str) -> dict[str, Any]:
    """All that decides the prompts: equal requests give equal prompts."""
    identity = {"name": Path(tokenizer.name_or_path).name, "vocab_sha256": vocab_sha256(tokenizer)}
    return {"sampler": sampler, "sampler_version": SAMPLER_VERSION, **vars(shape), "tokenizer": identity}


def vocab_sha256(tokenizer: Any) -> str:
    """Tells tokenizers apart, whatever their folders are named."""
    token_ids = tokenizer.get_vocab()
    vocabulary = "\0".join(sorted(token_ids, key=token_ids.__getitem__)).encode()
    return hashlib.sha256(vocabulary).hexdigest()


def _write(
    fs: pafs.FileSystem, path: str, shape: Shape, tokenizer: Any, sampler: str, check_all: bool
) -> dict[str, Any]:
    """Writes the data files one by one and returns what was written, counted from the rows themselves."""
    slim, digest, prompt_bytes, checked = [], 0, 0, 0
    if isinstance(fs, pafs.LocalFileSystem):  # S3 has no folders; a marker for one would be taken for data
        fs.create_dir(path)
    for part, batch in enumerate(_batches(shape, tokenizer, sampler)):
        if sampler == "published":
            checked += len(batch)  # its lengths come from encoding each prompt
        else:
            checked += check_lengths(batch, tokenizer, len(batch) if check_all else CHECKED_PER_FILE)
        _write_file(fs, _part(path, part), batch)
        digest += dataset.batch_digest(batch)
        prompt_bytes += pc.sum(pc.binary_length(batch.column("prompt"))).as_py()
        slim.append(batch.select(["prompt_len", "prefix_id"]))
    return {
        "files": len(slim),
        **_counts(pa.Table.from_batches(slim), shape),
        "lengths_checked": checked,
        "prompt_bytes": prompt_bytes,
        "fingerprint": dataset.fingerprint_of(digest),
    }


def _write_file(fs: pafs.FileSystem, path: str, batch: pa.RecordBatch) -> None:
    # Prompts are all different: a dictionary or statistics of them would only cost.
    options = {"compression": "zstd", "compression_level": 1, "use_dictionary": False, "write_statistics": ["id"]}
    with fs.open_output_stream(path) as file:
        pq.write_table(pa.Table.from_batches([batch]), file, row_group_size=ROW_GROUP_ROWS, **options)


def _batches(shape: Shape, tokenizer: Any, sampler: str) -> Iterator[pa.RecordBatch]:
    if sampler == "published":
        return published.sample(shape, tokenizer, _parts(shape))
    return prompts.sample(shape, prompts.words(tokenizer), _parts(shape))


def _parts(shape: Shape) -> int:
    return min(config.DATASET_FILES, shape.rows)


def check_lengths(batch: pa.RecordBatch, tokenizer: Any, count: int) -> int:
    """Encodes the first `count` prompts, as good as any, their order being random. Returns how many were encoded.

    Raises ValueError if one has other than `prompt_len` tokens.
    """
    rows = batch.slice(0, count).to_pylist()
    lengths = prompts.encoded_lengths(tokenizer, [row["prompt"] for row in rows])
    for row, length in zip(rows, lengths, strict=True):
        if length != row["prompt_len"]:
            raise ValueError(f"prompt {row['id']}: expected {row['prompt_len']} tokens, the text encodes to {length}")
    return len(rows)


def _counts(rows: pa.Table, shape: Shape) -> dict[str, Any]:
    """What was asked for and what there is, from the columns `prompt_len` and `prefix_id`."""
    groups = rows.group_by("prefix_id").aggregate([([], "count_all")]).column("count_all")
    lengths = pc.min_max(rows.column("prompt_len")).as_py()
    return {
        "rows_asked": shape.rows,
        "rows": len(rows),
        "rows_dropped": shape.rows - len(rows),
        "prompt_len_asked": shape.prompt_len,
        "prompt_len_min": lengths["min"],
        "prompt_len_max": lengths["max"],
        "prompt_tokens": pc.sum(rows.column("prompt_len")).as_py(),
        "prompts_off_length": pc.sum(pc.not_equal(rows.column("prompt_len"), shape.prompt_len)).as_py(),
        "rows_per_prefix": pc.min_max(groups).as_py() if shape.prefixes else None,
    }


def _part(path: str, index: int) -> str:
    return f"{path}/part-{index}.parquet"


def _data_files(fs: pafs.FileSystem, path: str) -> list[str]:
    try:
        return dataset.files(fs, path)
    except FileNotFoundError:
        return []


def _write_manifest(fs: pafs.FileSystem, path: str, manifest: Manifest) -> None:
    if isinstance(fs, pafs.LocalFileSystem):
        fs.create_dir(str(Path(path).parent))
    with fs.open_output_stream(dataset.manifest_path(path)) as stream:
        stream.write((json.dumps(manifest, indent=2) + "\n").encode())


def main() -> None:
    """The command line; prints the manifest."""
    parser = argparse.ArgumentParser(description="Make a dataset of prompts with shared prefixes.")
    parser.add_argument(
        "--prefixes", type=arguments.at_least(0), required=True, help="shared prefixes; 0 shares nothing"
    )
    parser.add_argument("--rows", type=arguments.at_least(1), default=config.DATASET_ROWS, help="prompts (%(default)s)")
    parser.add_argument("--prompt-len", type=arguments.at_least(1), default=512, help="tokens a prompt (%(default)s)")
    parser.add_argument(
        "--shared", type=arguments.not_negative, default=0.5, help="part of a prompt that is prefix (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=config.DATASET_SEED, help="(%(default)s)")
    parser.add_argument("--sampler", choices=SAMPLERS, default=config.DATASET_SAMPLER, help="(%(default)s)")
    parser.add_argument("--check-all", action="store_true", help="encode every prompt to check its length; slow")
    args = parser.parse_args()
    prefix_len = round(args.prompt_len * args.shared) if args.prefixes else 0
    try:
        shape = Shape(args.rows, args.prefixes, prefix_len, args.prompt_len - prefix_len, args.seed)
        manifest = make(shape, load_tokenizer(), config.DATASETS_PATH, args.sampler, args.check_all)
    except (ValueError, storage.StorageError) as error:
        sys.exit(f"generator: {error}")
    print(json.dumps(manifest, indent=2))


if __name__ == "__main__":
    stdout.exit_after(main)
