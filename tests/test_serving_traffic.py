"""What is offered: arrival times, families, traces. Seeded, exact in number and length, refused where it cannot be."""

import json
import statistics
from collections import Counter
from itertools import pairwise

import config
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness.data import prompts
from harness.serving import arrivals, trace, traffic, workload
from harness.serving.trace import TraceError
from harness.serving.traffic import Generator, Request, Sizes, fingerprint, schedule

SIZES = Sizes(64, 16, 480, 24, 128, 8, 32, 12, 4, 0.25)
MIX = {"chat": 0.6, "long": 0.15, "agents": 0.25}


@pytest.fixture(scope="module")
def words(tokenizer):
    return prompts.words(tokenizer).to_pylist()


@pytest.fixture(scope="module")
def requests(words):
    return Generator(words, MIX, SIZES, 42).take(2000)


@pytest.mark.parametrize(
    ("process", "burstiness", "variation"), [("poisson", 1, 1), ("gamma", 0.25, 2), ("gamma", 4, 0.5)]
)
def test_arrivals_have_exactly_the_mean_rate_and_the_processs_variation(process, burstiness, variation):
    times = arrivals.times(process, 50.0, 4000, 7, burstiness)
    gaps = [b - a for a, b in pairwise([0.0, *times])]
    assert times[-1] == pytest.approx(4000 / 50)
    assert min(gaps) >= 0
    # Coefficient of variation of a gamma distribution: 1 / sqrt(shape).
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.1)


def test_one_seed_gives_the_same_arrivals_and_another_gives_others():
    first, again, other = (arrivals.times("gamma", 10, 50, seed, 0.5) for seed in (1, 1, 2))
    assert first == again != other


def test_the_mix_has_its_shares_and_each_family_its_sizes(requests):
    counts = Counter(request.family for request in requests)
    for family, share in MIX.items():
        assert counts[family] / 2000 == pytest.approx(share, abs=0.05)
    chat, long, agents = ([one for one in requests if one.family == family] for family in MIX)
    assert statistics.mean(one.prompt_len for one in long) == pytest.approx(480, rel=0.05)
    assert statistics.mean(one.output_len for one in chat) == pytest.approx(16, rel=0.05)
    outputs = [one.output_len for one in agents]
    assert min(outputs) <= 3
    assert max(outputs) >= 24
    cancelled = [one for one in agents if one.cancel_after is not None]
    assert len(cancelled) / len(agents) == pytest.approx(0.25, abs=0.06)
    assert all(1 <= one.cancel_after < one.output_len for one in cancelled)
    assert all(one.cancel_after is None for one in chat + long)


def test_prompts_have_exactly_the_length_that_they_say(requests, tokenizer):
    lengths = prompts.encoded_lengths(tokenizer, [request.prompt for request in requests[:200]])
    assert lengths == [request.prompt_len for request in requests[:200]]


def test_the_longest_that_can_be_drawn_is_known_beforehand(words):
    for family in MIX:
        drawn = Generator(words, {family: 1.0}, SIZES, 3).take(4000)
        prompt_len, output_len = traffic.longest(family, SIZES)
        assert 0.97 * prompt_len < max(one.prompt_len for one in drawn) <= prompt_len
        assert 0.97 * output_len < max(one.output_len for one in drawn) <= output_len


def test_agents_share_a_few_prefixes_and_nothing_else_repeats(requests):
    starts = Counter(request.prompt[:60] for request in requests)
    agents = {request.prompt[:60] for request in requests if request.family == "agents"}
    assert len(agents) == 8
    assert all(count == 1 for start, count in starts.items() if start not in agents)
    assert len({request.prompt for request in requests}) == 2000


def test_more_requests_begin_with_the_same_ones(words):
    assert Generator(words, MIX, SIZES, 42).take(50) == Generator(words, MIX, SIZES, 42).take(90)[:50]
    assert Generator(words, MIX, SIZES, 42).take(50) != Generator(words, MIX, SIZES, 43).take(50)


def test_calls_of_one_agent_arrive_together(words):
    timed = schedule(Generator(words, {"agents": 1.0}, SIZES, 1).take(40), "poisson", 2.0, 1, 1.0)
    by_burst = [timed[i : i + 4] for i in range(0, 40, 4)]
    assert all(burst[-1][0] - burst[0][0] <= traffic.BURST_S for burst in by_burst)
    assert timed[-1][0] == pytest.approx(20, abs=0.1)


def test_the_fingerprint_is_that_of_this_version_on_every_machine(requests):
    """Changes only together with TRAFFIC_VERSION: records of one version and fingerprint offered the same."""
    assert traffic.TRAFFIC_VERSION == 1
    assert fingerprint(schedule(requests[:100], "gamma", 9.0, 42, 0.5))[:16] == "e06495db7456c8b0"


def test_the_warm_up_shares_no_prefix_with_what_is_measured(model_folder, monkeypatch):
    monkeypatch.setattr(config, "MODEL_NAME", str(model_folder))
    offered, warm = workload.load()
    measured = {request.prompt[:60] for _, request in offered.at(40.0, 10.0)}
    assert len(warm) == config.SERVING_WARMUP_REQUESTS
    assert measured.isdisjoint(request.prompt[:60] for request in warm)


ROWS = [
    {"arrival_s": 100.0, "prompt": "b", "output_len": 5, "family": "chat"},
    {"arrival_s": 90.0, "prompt": "a", "output_len": 3},
    {"arrival_s": 110.0, "prompt": "c", "output_len": 4, "cancel_after": 2},
]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_users_trace_is_replayed_at_any_rate(tmp_path, suffix):
    path = tmp_path / f"trace{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    else:
        pq.write_table(pa.Table.from_pylist([{**dict.fromkeys(ROWS[0] | ROWS[2]), **one} for one in ROWS]), path)
    loaded = trace.load(path)
    assert [(one.prompt, one.family, one.output_len, one.cancel_after) for one in loaded] == [
        *(("a", "trace", 3, None), ("b", "chat", 5, None), ("c", "trace", 4, 2)),
    ]
    assert [at for at, _ in schedule(loaded, "replay", 0.2, 1, 1)] == [0.0, 5.0, 10.0]
    assert [at for at, _ in schedule(loaded, "replay", 2.0, 1, 1)] == [0.0, 0.5, 1.0]


def test_a_trace_that_was_edited_is_another_source(tmp_path, model_folder, monkeypatch):
    path = tmp_path / "trace.jsonl"
    monkeypatch.setattr(config, "MODEL_NAME", str(model_folder))
    monkeypatch.setattr(config, "SERVING_TRACE", str(path))
    path.write_text("\n".join(map(json.dumps, ROWS)))
    sources = [workload.load()[0].source for _ in range(2)]
    path.write_text("\n".join(map(json.dumps, [*ROWS[:2], ROWS[2] | {"prompt": "d"}])))
    sources.append(workload.load()[0].source)
    assert sources[0] == sources[1] != sources[2]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"arrival_s": None}, "row 1: arrival_s None, expected seconds"),
        ({"arrival_s": float("nan")}, "row 1: arrival_s nan"),
        ({"prompt": "  "}, "row 1: prompt '  ', expected text"),
        ({"prompt": ""}, "row 1: prompt '', expected text"),
        ({"prompt": None}, "row 1: prompt None, expected text"),
        ({"prompt": 5}, "row 1: prompt 5, expected text"),
        ({"output_len": 0}, "row 1: output_len 0"),
        ({"cancel_after": 9}, "row 1: cancel_after 9"),
    ],
)
def test_a_trace_with_a_bad_row_is_refused_by_name(tmp_path, row, expected):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, [ROWS[0], {**ROWS[1], **row}])))
    with pytest.raises(TraceError) as error:
        trace.load(path)
    assert expected in str(error.value)
    assert "1 of 2" in str(error.value)


def test_a_request_of_a_trace_that_the_server_would_refuse_is_named_with_its_lengths(
    tmp_path, tokenizer, words, monkeypatch
):
    monkeypatch.setattr(config, "MAX_MODEL_LEN", 64)
    path = tmp_path / "trace.jsonl"
    rows = [{"arrival_s": 1.0, "prompt": "".join(words[:tokens]), "output_len": 16} for tokens in (47, 48, 49, 65)]
    path.write_text("\n".join(map(json.dumps, rows[:2])))
    assert len(trace.load(path, tokenizer)) == 2
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(TraceError) as error:
        trace.load(path, tokenizer)
    expected = "expected at most MAX_MODEL_LEN (64) together"
    assert f"row 2: 49 prompt and 16 output tokens, {expected}; row 3: 65 prompt" in str(error.value)


def test_a_trace_that_is_no_trace_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        trace.load(tmp_path / "missing.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(TraceError, match="found 0 of 0"):
        trace.load(tmp_path / "empty.jsonl")
    (tmp_path / "broken.jsonl").write_text("{half\n")
    with pytest.raises(TraceError, match="line 1: expected a JSON object"):
        trace.load(tmp_path / "broken.jsonl")


@pytest.mark.parametrize("text", ["chat", "chat=0", "chats=1", "chat=-1", "chat=1,long=x"])
def test_a_mix_that_cannot_be_read_is_named(text):
    with pytest.raises(ValueError, match="expected family=share with families chat, long, agents"):
        traffic.mix(text)


def test_shares_are_made_to_add_up_to_one():
    assert traffic.mix("chat=3, agents=1") == {"chat": 0.75, "agents": 0.25}


def test_a_trace_without_a_span_arrives_at_once():
    same = [Request("trace", "a", 1, arrival_s=5.0)] * 3
    assert [at for at, _ in schedule(same, "replay", 4.0, 1, 1)] == [0, 0, 0]
