"""The record file: what survives a kill, which versions load, what the validator refuses, what may be compared."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import config
import pytest
from harness import machine, record_file, records, results_block, schema
from harness.comparison import comparability
from harness.report import page as report_page
from harness.serving import page as serving_page
from harness.serving import row_file
from synthetic import failed, record, with_settings

SUITE = Path(records.__file__).resolve().parents[1]
OLD_FORMATS = Path(__file__).parent / "data"


def write(folder: Path, *lines: bytes) -> Path:
    path = folder / record_file.FILE_NAME
    path.write_bytes(b"".join(lines))
    return path


def line(made: dict) -> bytes:
    return json.dumps(made).encode() + b"\n"


def test_records_come_back_in_the_order_in_which_they_were_appended(tmp_path):
    made = [record(), failed("ray-data", "died"), record("ray-data")]
    for one in made:
        record_file.append(one, tmp_path)
    assert record_file.load(tmp_path) == made


def test_a_folder_without_records_has_none(tmp_path):
    assert record_file.load(tmp_path / "nothing") == []


def test_the_engines_of_every_committed_run_counted_the_prompt_tokens_that_its_dataset_has():
    """Preempted requests, too: 512 tokens a prompt, as generated."""
    runs = [made for made in record_file.load(SUITE / "results") if made["status"] == "ok"]
    assert any(made["counters"]["preemptions"] for made in runs)
    assert {made["tokens"]["prompt"] / made["dataset"]["rows"] for made in runs} == {512.0}


def test_every_committed_record_fits_the_format():
    committed = record_file.load(SUITE / "results")
    assert [problem for made in committed for problem in schema.problems(made)] == []


def test_records_of_every_version_load_for_ever(tmp_path):
    stored = sorted(OLD_FORMATS.glob("records-schema-*.jsonl"))
    assert [path.stem for path in stored] == [f"records-schema-{version}" for version in range(1, schema.SCHEMA + 1)]
    for path in stored:
        write(tmp_path, path.read_bytes())
        assert [schema.problems(made) for made in record_file.load(tmp_path)] == [[], []]


def test_an_old_version_is_brought_up_to_date(tmp_path, monkeypatch):
    monkeypatch.setattr(record_file, "UPGRADES", {0: lambda old: {**old, "wall_s": old["seconds"]}})
    write(tmp_path, b'{"schema": 0, "seconds": 5.0}\n')
    (made,) = record_file.load(tmp_path)
    assert (made["schema"], made["wall_s"]) == (1, 5.0)


@pytest.mark.parametrize("version", [2, 0, "1", None, True, 1.0])
def test_an_unknown_version_is_refused_by_name(tmp_path, version):
    path = write(tmp_path, line(record()), line({**record(), "schema": version}))
    with pytest.raises(
        record_file.RecordError, match=f"{path}:2: schema {version!r} is unknown here; this suite reads"
    ):
        record_file.load(tmp_path)


@pytest.mark.parametrize("bad", [b"{half\n", b"[1]\n", b"\n", b'{"schema": 1}{"schema": 1}\n'])
def test_a_broken_line_in_the_middle_is_named_not_skipped(tmp_path, bad):
    path = write(tmp_path, line(record()), bad, line(record()))
    with pytest.raises(record_file.RecordError, match=f"{path}:2"):
        record_file.load(tmp_path)


def test_half_a_line_at_the_end_is_moved_aside_by_name_wherever_it_was_cut(tmp_path, capsys):
    first, second = line(record()), line(record("ray-data"))
    for cut in random.Random(1).sample(range(1, len(second) - 2), 40):
        folder = tmp_path / str(cut)
        folder.mkdir()
        write(folder, first, second[:cut])
        assert len(record_file.load(folder)) == 1
        assert "ends in half a line" in capsys.readouterr().err
        record_file.append(record("continuous-batch"), folder)
        assert [made["strategy"] for made in record_file.load(folder)] == ["naive-batch", "continuous-batch"]
        (aside,) = folder.glob("records.half-*.txt")
        assert aside.read_bytes() == second[:cut]
        assert str(aside) in capsys.readouterr().err


def test_a_last_line_that_only_lacks_its_end_is_kept(tmp_path):
    write(tmp_path, line(record()), line(record("ray-data"))[:-1])
    record_file.append(record("continuous-batch"), tmp_path)
    assert [made["strategy"] for made in record_file.load(tmp_path)] == ["naive-batch", "ray-data", "continuous-batch"]
    assert not list(tmp_path.glob("records.half-*"))


APPENDER = """
import sys, os
sys.path[:0] = [{suite!r}, {tests!r}]
from harness import record_file
from synthetic import record
while True:
    made = record(warnings=["x" * 300_000])
    record_file.append(made, {folder!r})
    os.write(1, (made["run_id"] + "\\n").encode())
"""


def test_a_kill_at_a_random_moment_loses_no_appended_record_and_corrupts_none(tmp_path):
    dice = random.Random(0)
    acknowledged = []
    code = APPENDER.format(suite=str(SUITE), tests=str(Path(__file__).parent), folder=str(tmp_path))
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        acknowledged.append(os.read(process.stdout.fileno(), 33).decode())
        time.sleep(dice.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        acknowledged += [process.stdout.read().decode()]
        process.wait()
    ids = "".join(acknowledged).split()
    record_file.set_aside_half_line(tmp_path)
    found = [made["run_id"] for made in record_file.load(tmp_path)]
    assert len(ids) > 20
    assert set(ids) <= set(found)
    assert len(set(found)) == len(found)


def test_two_writers_at_once_do_not_mix_their_lines(tmp_path):
    code = APPENDER.format(suite=str(SUITE), tests=str(Path(__file__).parent), folder=str(tmp_path))
    code = code.replace("while True", "for _ in range(15)")
    writers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len({made["run_id"] for made in record_file.load(tmp_path)}) == 30


@pytest.mark.parametrize(
    "made", [record(), failed("ray-data", "an engine died"), record(status="invalid", error="1 row short")]
)
def test_the_validator_accepts_a_good_record(made):
    assert schema.problems(made) == []


BROKEN = {
    "key 'tokens' is missing": lambda r: r.pop("tokens"),
    "unknown key 'speed'": lambda r: r.update(speed=1),
    "wall_s: expected seconds or null, found -1": lambda r: r.update(wall_s=-1),
    "wall_s: expected seconds or null, found 'fast'": lambda r: r.update(wall_s="fast"),
    "wall_s: not a number": lambda r: r.update(wall_s=math.nan),
    "tokens.output: not a number": lambda r: r["tokens"].update(output=10**400),
    "rows.out: expected a count or null, found True": lambda r: r["rows"].update(out=True),
    "status: expected one of": lambda r: r.update(status="fine"),
    "status 'ok' with error": lambda r: r.update(error="but"),
    "status 'failed' with error None": lambda r: r.update(status="failed"),
    "status 'ok' with 400 rows in and 399 out": lambda r: r["rows"].update(out=399),
    "status 'ok' without dataset.fingerprint": lambda r: r.update(dataset=None),
    "status 'ok' without dataset.name": lambda r: r["dataset"].pop("name"),
    "status 'ok' without wall_s": lambda r: r.update(wall_s=None),
    "phases_s add up to 45.00 s, wall_s is 40.00": lambda r: r["phases_s"].update(tail=6.5),
    "waterfall_s add up to": lambda r: r["waterfall_s"].update(read=5.0),
    "phase_tokens.steady: expected an amount of 0 or more or null, found -0.5": lambda r: r["phase_tokens"].update(
        steady=-0.5
    ),
    "status 'ok' without phases_s, though PROBE_INTERVAL_S was 1": lambda r: r.update(
        phases_s=None, config={"PROBE_INTERVAL_S": 1.0}
    ),
    "status 'ok' without phases_s, though PROBE_INTERVAL_S was 0.5": lambda r: r.update(
        phases_s=dict.fromkeys(schema.PHASES), config={"PROBE_INTERVAL_S": 0.5}
    ),
    "waterfall_s.read: expected a number or null, found 'x'": lambda r: r["waterfall_s"].update(read="x"),
    "warnings.0: expected text, found 1": lambda r: r.update(warnings=[1]),
    "engines.0: expected an object, found 'x'": lambda r: r.update(engines=["x"]),
    "engines.0.settings: expected an object or null, found []": lambda r: r["engines"][0].update(settings=[]),
    "engines.0.settings.num_gpu_blocks: expected a count or null": lambda r: r["engines"][0].update(
        settings={"num_gpu_blocks": "many"}
    ),
    "config.PROBE_INTERVAL_S: expected seconds, found '1'": lambda r: r["config"].update(PROBE_INTERVAL_S="1"),
    "config.CONCURRENCY: expected a count, found None": lambda r: r["config"].update(CONCURRENCY=None),
    "hardware.gpu_ids: expected a list of texts or null, found [1]": lambda r: r["hardware"].update(gpu_ids=[1]),
    "dataset.fingerprint: expected text, found 7": lambda r: r["dataset"].update(fingerprint=7),
    "status 'ok' with None rows in and None out": lambda r: r.update(rows={"a": 1}),
    "run_id: expected hex text": lambda r: r.update(run_id="../../x"),
    "started_at: expected UTC": lambda r: r.update(started_at="yesterday"),
    "cache_state: expected one of": lambda r: r.update(cache_state="hot"),
    "schema: expected 1": lambda r: r.update(schema=2),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_the_validator_names_what_is_wrong(problem):
    made = record()
    BROKEN[problem](made)
    assert any(text.startswith(problem) for text in schema.problems(made)), schema.problems(made)


@pytest.mark.parametrize("changes", [{"config": {"PROBE_INTERVAL_S": 0.0}}, {}, {"rows": {"continued": 400}}])
def test_a_run_that_had_no_probe_or_nothing_to_generate_has_no_phases_rightly(changes):
    made = record(**{"config": {"PROBE_INTERVAL_S": 1.0}} if "rows" in changes else {}, **changes)
    assert schema.problems({**made, "phases_s": None}) == []


def test_the_validator_and_the_module_that_describes_the_format_list_the_same_keys():
    described = records.__doc__.split("Keys.")[1]
    assert [key for key in schema.FIELDS if f"    {key} " not in described] == []
    assert sorted(records.new(Path("a-strategy.py"))) == sorted(schema.FIELDS)


def test_equal_runs_may_be_compared():
    assert comparability.differences(record(), record("ray-data", wall_s=55.0)) == []


DIFFERENT = {
    "dataset: ": lambda r: {**r, "dataset": {**r["dataset"], "fingerprint": "other"}},
    "files: 8 / 4": lambda r: {**r, "dataset": {**r["dataset"], "files": 4}},
    "OUTPUT_LEN: 16 / 32": lambda r: {**r, "config": {**r["config"], "OUTPUT_LEN": 32}},
    "OUTPUT_LEN_DISTRIBUTION: fixed / uniform": lambda r: {
        **r,
        "config": {**r["config"], "OUTPUT_LEN_DISTRIBUTION": "uniform"},
    },
    "KV_CACHE_MEMORY_BYTES: None / 12000000000": lambda r: {
        **r,
        "config": {**r["config"], "KV_CACHE_MEMORY_BYTES": 12_000_000_000},
    },
    "gpus: ": lambda r: {**r, "hardware": {**r["hardware"], "gpus": ["NVIDIA L4"]}},
    "version of vllm: 0.26.0 / 0.27.0": lambda r: {**r, "versions": {**r["versions"], "vllm": "0.27.0"}},
    "engines: 1 / 2": lambda r: {**r, "engines": r["engines"] * 2},
    "cache_state: cold / warm": lambda r: {**r, "cache_state": "warm"},
    "max_num_seqs: 64 / 128": lambda r: with_settings(r, max_num_seqs=128),
    "max_num_batched_tokens: 2048 / 16384": lambda r: with_settings(r, max_num_batched_tokens=16384),
    "block_size: 16 / 128": lambda r: with_settings(r, block_size=128),
    "num_gpu_blocks: 10,000 / 9,800": lambda r: with_settings(r, num_gpu_blocks=9800),
    "dtype: bfloat16 / float16": lambda r: with_settings(r, dtype="float16"),
    "chunked_prefill: True / False": lambda r: with_settings(r, chunked_prefill=False),
    "prefix_caching: True / False": lambda r: with_settings(r, prefix_caching=False),
    "attention_backend: FLASH_ATTN / FLASHINFER": lambda r: with_settings(r, attention_backend="FLASHINFER"),
    "max_num_seqs: 64 / not read back": lambda r: with_settings(r, max_num_seqs=None),
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_a_comparison_of_two_records_lists_what_differs(difference):
    found = comparability.differences(record(), DIFFERENT[difference](record("ray-data")))
    assert [text for text in found if text.startswith(difference)], found
    assert len(found) == 1


def test_a_few_kv_blocks_between_starts_are_no_difference():
    assert comparability.differences(record(), with_settings(record(), num_gpu_blocks=9950)) == []


def test_engines_of_one_run_that_differ_among_themselves_are_a_difference():
    mixed = record()
    mixed["engines"] = [*mixed["engines"], *with_settings(mixed, max_num_seqs=8)["engines"]]
    two = record(engines=record()["engines"] * 2)
    assert comparability.differences(two, mixed) == ["max_num_seqs: 64 / unequal engines: [64, 8]"]


def test_where_things_lie_and_what_they_cost_is_no_condition():
    moved = {"INPUT_PATH": "s3://elsewhere/x", "RESULTS_PATH": "/x", "GPU_PRICE_PER_HOUR": 2.0, "COMPARISON_TRIAL": 2}
    assert comparability.differences(record(), record(config=moved)) == []
    here, there = record(config={"MODEL_NAME": "/a/model"}), record(config={"MODEL_NAME": "/b/model"})
    assert comparability.differences(here, there) == []


@pytest.mark.parametrize("knob", ["SERVING_SEED", "DATASET_ROWS", "OUTPUT_LEN_MIN", "OUTPUT_LEN_MAX"])
def test_a_knob_that_no_strategy_reads_is_no_condition(knob):
    assert comparability.differences(record(config={knob: 1}), record(config={knob: 2})) == []


@pytest.mark.parametrize("knob", ["OUTPUT_LEN_MIN", "OUTPUT_LEN_MAX"])
def test_the_range_of_output_lengths_is_a_condition_where_they_vary(knob):
    low, high = (record(config={"OUTPUT_LEN_DISTRIBUTION": "uniform", knob: value}) for value in (1, 2))
    assert comparability.differences(low, high) == [f"{knob}: 1 / 2"]


def test_lengths_that_a_logits_processor_varied_are_not_compared_with_those_of_a_scheduler():
    varying = {"OUTPUT_LEN_DISTRIBUTION": "uniform", "LOGITS_PROCESSORS": None}
    former = record(config={**varying, "SAMPLING_PARAMS": {"max_tokens": 9}})
    today = record(config={**varying, "SAMPLING_PARAMS": {"min_tokens": 1, "max_tokens": 9}})
    named = record(config={"OUTPUT_LEN_DISTRIBUTION": "fixed", "LOGITS_PROCESSORS": comparability.FORMER_ENDING})
    assert comparability.differences(former, today) == [f"LOGITS_PROCESSORS: {comparability.FORMER_ENDING} / None"]
    assert comparability.differences(former, named) == ["OUTPUT_LEN_DISTRIBUTION: uniform / fixed"]


def test_a_processor_of_the_users_own_does_not_hide_the_one_that_varied_lengths():
    own = {"OUTPUT_LEN_DISTRIBUTION": "uniform", "LOGITS_PROCESSORS": "a:B"}
    former = record(config={**own, "SAMPLING_PARAMS": {"max_tokens": 9}})
    today = record(config={**own, "SAMPLING_PARAMS": {"min_tokens": 1, "max_tokens": 9}})
    assert comparability.differences(former, today) == [f"LOGITS_PROCESSORS: a:B,{comparability.FORMER_ENDING} / a:B"]


@pytest.mark.parametrize("config", [{}, {"SAMPLING_PARAMS": None}], ids=["absent", "null"])
def test_varying_lengths_without_sampling_params_are_those_of_the_processor(config):
    knobs = comparability.conditions({"OUTPUT_LEN_DISTRIBUTION": "uniform", **config})
    assert knobs["LOGITS_PROCESSORS"] == comparability.FORMER_ENDING


def test_a_knob_that_the_suite_did_not_have_yet_is_no_difference():
    assert comparability.differences(record(), record(config={"NEW_KNOB": 1})) == []


def test_every_knob_left_out_of_the_conditions_exists():
    assert {name for name in comparability.NOT_CONDITIONS if name.isupper()} <= set(vars(config))


def test_an_unknown_setting_that_is_no_limit_is_a_caveat_not_an_obstacle():
    quiet = with_settings(record(), attention_backend=None)
    assert comparability.differences(record(), quiet) == []
    assert comparability.unknowns(quiet) == ["attention_backend"]


def test_every_line_that_is_no_record_is_named_at_once(tmp_path):
    path = write(tmp_path, line(record()), b"garbage\n", line(record()), b"[]\n", b'{"schema": 99}\n')
    with pytest.raises(record_file.RecordError) as error:
        record_file.load(tmp_path)
    said = str(error.value).splitlines()
    assert [text.partition(": ")[0] for text in said] == [f"{path}:2", f"{path}:4", f"{path}:5"]


@pytest.mark.parametrize("option", ["--check", "--report"])
def test_compare_says_which_line_is_wrong_without_a_traceback(tmp_path, option):
    path = write(tmp_path, b"garbage\n", line(record()))
    command = [sys.executable, str(SUITE / "compare.py"), option]
    environment = {**os.environ, "BENCH_RESULTS_PATH": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.partition(": ")[0]) == (1, f"{path}:1")


def test_the_committed_pages_are_those_of_the_committed_records(tmp_path):
    """Otherwise: make report, and serving-scorecard.py --report, both with RESULTS_PATH=results."""
    shutil.copytree(SUITE / "results", tmp_path / "results")
    rows = row_file.load(SUITE / "results")
    made = [*report_page.write(record_file.load(SUITE / "results"), tmp_path / "results", None)]
    made.append(serving_page.write(rows, tmp_path / "results", None))
    for path in made:
        assert path.read_text() == (SUITE / "results" / path.name).read_text(), path.name


@pytest.mark.parametrize(
    ("visible", "known"), [(None, ["GPU-a", "GPU-b"]), ("1", ["GPU-b"]), ("GPU-a,1", ["GPU-a", "GPU-b"]), ("", [])]
)
def test_the_cards_that_a_run_may_use_are_known_by_their_ids(tmp_path, monkeypatch, visible, known):
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\nprintf 'GPU-a\\nGPU-b\\n'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpu_ids() == known


def test_runs_pinned_to_fewer_cores_are_not_compared_with_others():
    cores = [record(hardware={**record()["hardware"], "usable_cpus": n}) for n in (1, 2)]
    assert comparability.differences(*cores) == ["usable_cpus: 1 / 2"]
    assert comparability.differences(cores[0], record()) == []


def test_the_block_for_people_shows_the_knobs_that_a_run_reads_and_no_others() -> None:
    knobs = {"DATASET_ROWS": 200_000, "DATASETS_PATH": "sets", "SERVING_RATES": 5}
    lines = results_block.lines(record(config=knobs))
    assert "    MAX_NUM_SEQS = 64" in lines
    assert "    DATASETS_PATH = 'sets'" in lines
    assert not [line for line in lines if "SERVING_" in line or "DATASET_" in line]


def test_the_rate_for_people_leaves_out_rows_that_an_earlier_run_answered() -> None:
    whole = record(wall_s=40.0)
    assert "prompts/s:     10.0 whole job" in results_block.lines(whole)
    continued = record(wall_s=40.0, rows={"continued": 100})
    assert "prompts/s:     7.5 whole job" in results_block.lines(continued)
