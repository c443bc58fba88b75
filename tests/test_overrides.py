"""Typed overrides of config.py: what they accept, and what they say when they refuse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import overrides
from harness.engines import engine_args
from harness.overrides import ConfigError

SUITE = Path(__file__).resolve().parents[1] / "benchmarking" / "vllm"


def knobs() -> dict[str, object]:
    hints = {"SEQS": int, "SHARE": float, "EAGER": bool, "BYTES": int | None} | dict.fromkeys(
        overrides.LOCAL_PATHS, str
    )
    paths = dict.fromkeys(overrides.LOCAL_PATHS, "s3://bucket/x")
    return {"__annotations__": hints, "SEQS": 1, "SHARE": 0.5, "EAGER": False, "BYTES": None, **paths}


def test_overrides_are_parsed_by_the_knobs_type() -> None:
    config = knobs()
    environment = {"BENCH_SEQS": "64", "BENCH_SHARE": "0.25", "BENCH_EAGER": "true", "BENCH_BYTES": "7", "HOME": "x"}
    overrides.apply(config, environment)
    assert (config["SEQS"], config["SHARE"], config["EAGER"], config["BYTES"]) == (64, 0.25, True, 7)
    overrides.apply(config, {"BENCH_BYTES": "none"})
    assert config["BYTES"] is None


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("BENCH_SEQS", "many", "BENCH_SEQS='many': expected a whole number"),
        ("BENCH_SEQS", "1.5", "BENCH_SEQS='1.5': expected a whole number"),
        ("BENCH_SEQS", "none", "BENCH_SEQS='none': expected a whole number"),
        ("BENCH_SEQS", "9223372036854775808", "expected a whole number below 2^63"),
        ("BENCH_DATASETS_PATH", "a\udcff", r"BENCH_DATASETS_PATH='a\udcff': expected text"),
        ("BENCH_DATASETS_PATH", "a\0", r"BENCH_DATASETS_PATH='a\x00': expected text"),
        ("BENCH_PROFILE", "x" * 300, "expected one of ['h200', 'local-cpu', 'local-gpu']"),
        ("BENCH_SHARE", "nan", "BENCH_SHARE='nan': expected a finite number"),
        ("BENCH_SHARE", "inf", "BENCH_SHARE='inf': expected a finite number"),
        ("BENCH_EAGER", "yes", "BENCH_EAGER='yes': expected true or false"),
        ("BENCH_BYTES", "x", "BENCH_BYTES='x': expected a whole number below 2^63 or none"),
        ("BENCH_SEQZ", "1", "BENCH_SEQZ: no knob SEQZ in config.py; did you mean SEQS?"),
        ("BENCH_MODEL_NAME", "", "MODEL_NAME '': expected a path or a name. Set BENCH_MODEL_NAME, or unset it"),
        ("BENCH_RESULTS_PATH", " ", "RESULTS_PATH ' ': expected a path or a name. Set BENCH_RESULTS_PATH, or unset it"),
        ("BENCH_INPUT_PATH", "", "INPUT_PATH '': expected a path or a name. Set BENCH_INPUT_PATH, or unset it"),
        ("BENCH_OUTPUT_PATH", "", "OUTPUT_PATH '': expected a path or a name. Set BENCH_OUTPUT_PATH, or unset it"),
        ("BENCH_PROFILE", "nowhere", "BENCH_PROFILE='nowhere': expected one of ['h200', 'local-cpu', 'local-gpu']"),
    ],
)
def test_a_bad_override_names_the_variable_the_value_and_what_was_expected(variable: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        overrides.apply(knobs(), {variable: text})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SEQS", "64", "a whole number below 2^63"),
        ("SEQS", 64.0, "a whole number below 2^63"),
        ("SEQS", None, "a whole number below 2^63"),
        ("SEQS", True, "a whole number below 2^63"),
        ("SEQS", -(2**63), "a whole number below 2^63"),
        ("SHARE", float("nan"), "a finite number"),
        ("EAGER", 1, "true or false"),
        ("BYTES", [7], "a whole number below 2^63 or none"),
        ("INPUT_PATH", Path("x"), "text"),
    ],
)
def test_a_value_of_another_type_in_config_itself_is_refused_too(name: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        overrides.apply({**knobs(), name: value}, {})
    assert str(error.value) == f"{name} = {value!r} in config.py: expected {expected}"


def test_a_whole_number_is_as_good_where_a_fraction_is_expected() -> None:
    overrides.apply({**knobs(), "SHARE": 1}, {})


@pytest.mark.parametrize("content", [b"SEQS = [", b"\xff\xfe"])
def test_a_profile_that_is_no_toml_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(overrides, "SUITE_DIR", tmp_path)
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"profiles/mine\.toml: expected TOML, found: "):
        overrides.apply(knobs(), {"BENCH_PROFILE": "mine"})


def test_a_path_may_begin_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert overrides.absolute("~/records", written=True) == "/home/someone/records"


def test_a_knob_without_a_type_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"NEW in config\.py: expected its type, as in NEW: str = 'a', found none"):
        overrides.apply(knobs() | {"NEW": "a"}, {})


def test_a_single_override_wins_over_the_profile_and_workers_get_the_result() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BENCH_")}
    environment |= {"BENCH_PROFILE": "local-cpu", "BENCH_MAX_NUM_SEQS": "32"}
    command = "import config; from harness import overrides as o; print(o.as_environment(config))"
    shown = subprocess.run([sys.executable, "-c", command], cwd=SUITE, env=environment, capture_output=True, text=True)
    for_workers = eval(shown.stdout)
    assert (for_workers["BENCH_MAX_NUM_SEQS"], for_workers["BENCH_GPUS_PER_ENGINE"]) == ("32", "0")
    again = subprocess.run(
        [sys.executable, "-c", command], cwd=SUITE, env={**os.environ, **for_workers, "BENCH_PROFILE": ""},
        capture_output=True, text=True,
    )  # fmt: skip
    assert eval(again.stdout) == for_workers


def test_the_published_settings_are_the_defaults() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BENCH_")}
    command = "import config, json; print(json.dumps([config.MODEL_NAME, config.INPUT_PATH, config.OUTPUT_LEN, "
    command += "config.CONCURRENCY, config.MAX_MODEL_LEN, config.SAMPLING_PARAMS]))"
    shown = subprocess.run([sys.executable, "-c", command], cwd=SUITE, env=environment, capture_output=True, text=True)
    path = "s3://my-bucket/vllm-prefix-caching-partitioned/200k_0-5_512.parquet"
    assert eval(shown.stdout) == ["Qwen/Qwen3-8B", path, 128, 128, 4096, {"min_tokens": 128, "max_tokens": 128}]


def test_with_nothing_set_no_limit_is_left_to_an_engines_own_default() -> None:
    """vLLM's defaults differ between LLM and AsyncLLM: a limit that is not passed is not equal in all strategies."""
    limits = {"max_num_seqs": 1024, "max_num_batched_tokens": 16384, "max_model_len": 4096, "block_size": 16}
    assert {name: engine_args().get(name) for name in limits} == limits


def test_a_relative_folder_to_write_to_is_looked_up_from_config_whether_it_is_there_or_not() -> None:
    config = {**knobs(), "RESULTS_PATH": "not/yet", "OUTPUT_PATH": "results", "MODEL_NAME": "Qwen/Qwen3-8B"}
    overrides.apply(config, {})
    found = [config[name] for name in ("RESULTS_PATH", "OUTPUT_PATH", "MODEL_NAME", "INPUT_PATH")]
    assert found == [str(SUITE / "not" / "yet"), str(SUITE / "results"), "Qwen/Qwen3-8B", "s3://bucket/x"]


def test_a_relative_dataset_or_model_is_found_from_the_working_directory_where_config_has_none_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have another working directory: left relative, preflight would find the file and they would not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".local").mkdir()
    (tmp_path / "my.parquet").touch()
    config = {**knobs(), "MODEL_NAME": ".local", "INPUT_PATH": "my.parquet"}
    overrides.apply(config, {})
    assert (config["MODEL_NAME"], config["INPUT_PATH"]) == (str(tmp_path / ".local"), str(tmp_path / "my.parquet"))
    config = {**knobs(), "MODEL_NAME": "profiles", "INPUT_PATH": "./nowhere"}
    overrides.apply(config, {})
    assert (config["MODEL_NAME"], config["INPUT_PATH"]) == (str(SUITE / "profiles"), str(SUITE / "nowhere"))
