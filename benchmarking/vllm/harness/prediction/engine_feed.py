"""A real vLLM engine that is fed as a Feed says: what forecasts are checked against.

Unlike the replay, requests reach the engine one after the other while it runs, and the engine's own counters count.
"""

import itertools
from typing import Any, NamedTuple

from harness.prediction.engine_state import Feed
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

COUNTERS = ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:num_preemptions", "vllm:generation_tokens")


class Counted(NamedTuple):
    """Increase of vLLM's counters."""

    queries: int
    hits: int
    preemptions: int
    generation_tokens: int


class Arrivals:
    """Which batches are open, as in the replay: a lane opens its next batch when one has ended."""

    def __init__(self, feed: Feed) -> None:
        begins = [0, *feed.batch_end.tolist()]
        self.batches = [feed.rows[begin:end].tolist() for begin, end in itertools.pairwise(begins)]
        ends = [0, *feed.lane_end.tolist()]
        self.unopened = [list(range(begin, end)) for begin, end in itertools.pairwise(ends)]
        self.open_lanes: list[tuple[list[int], set[int]]] = []  # batches to come, and those open
        self.feed = feed

    def due(self) -> list[tuple[int, list[int]]]:
        """Batches that arrive now: number and rows."""
        while self.unopened and len(self.open_lanes) < self.feed.open_lanes:
            self.open_lanes.append((self.unopened.pop(0), set()))
        arriving = []
        for coming, opened in self.open_lanes:
            while coming and len(opened) < self.feed.open_batches:
                opened.add(coming[0])
                arriving.append((coming[0], self.batches[coming.pop(0)]))
        return arriving

    def ended(self, batch: int) -> None:
        for _, opened in self.open_lanes:
            opened.discard(batch)
        self.open_lanes = [lane for lane in self.open_lanes if lane[0] or lane[1]]


def serve(llm: LLM, prompts: list[list[int]], output_len: int, feed: Feed) -> Counted:
    """Empties the engine's prefix cache and serves `feed`, rows being indices of `prompts`.

    Raises RuntimeError if the cache cannot be emptied or tokens are missing in the end.
    """
    if not llm.reset_prefix_cache():
        raise RuntimeError("expected an idle engine with an empty prefix cache, found blocks in use")
    before = counters(llm)
    arrivals, left = Arrivals(feed), {}
    params = _params(output_len)
    done = 0
    while done < len(feed.rows):
        for batch, rows in arrivals.due():
            left[batch] = len(rows)
            for row in rows:
                llm.llm_engine.add_request(f"{batch}-{row}", TokensPrompt(prompt_token_ids=prompts[row]), params)
        for output in llm.llm_engine.step():
            done += output.finished
            batch = int(output.request_id.split("-")[0])
            left[batch] -= output.finished
            if not left[batch]:
                arrivals.ended(batch)
    return _difference(llm, before, len(feed.rows) * output_len)


def _params(output_len: int) -> SamplingParams:
    return SamplingParams(
        min_tokens=output_len,
        max_tokens=output_len,
        temperature=0.0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def counters(llm: LLM) -> Counted:
    values: dict[str, Any] = dict.fromkeys(COUNTERS, 0)
    for metric in llm.get_metrics():
        if metric.name in values:
            values[metric.name] += metric.value
    return Counted(*values.values())


def _difference(llm: LLM, before: Counted, generated: int) -> Counted:
    counted = Counted(*(int(new - old) for new, old in zip(counters(llm), before, strict=True)))
    if counted.generation_tokens != generated:
        raise RuntimeError(f"expected {generated} generated tokens, the engine counted {counted.generation_tokens}")
    return counted
