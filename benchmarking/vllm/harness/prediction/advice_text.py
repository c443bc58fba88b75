"""Advice as people read it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.prediction.advice import BOUND, NAIVE, WORTHWHILE, Advice, Timed
from harness.prediction.gpus import Gpu
from harness.prediction.model_shape import ModelShape
from harness.prediction.prefix_tree import Profile
from harness.prediction.prompt_set import PromptSet


def data_lines(source: str, prompts: PromptSet, profile: Profile, model: ModelShape) -> Iterator[str]:
    column, length = prompts.column, profile.length
    yield f"{source}: {_count(profile.rows, 'prompt')}, {_count(profile.tokens, 'token')}"
    left_out = {
        "null": column.null_prompts,
        "blank": column.blank_prompts,
        "too long for MAX_MODEL_LEN": prompts.too_long,
    }
    if any(left_out.values()):
        yield "  left out: " + ", ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
    if column.null_ids:
        yield f"  {_count(column.null_ids, 'row')} without an id: runs refuse that; give every row its own"
    if column.repeated_ids:
        yield f"  {_count(column.repeated_ids, 'id')} in more than one row: runs refuse that; give every row its own"
    if column.empty_files:
        yield f"  {column.empty_files} of {column.files} files are empty"
    if not profile.rows:
        return
    yield f"  length {_quantiles(length)} tokens; {profile.repeated_prompts:,} repeat an earlier prompt"
    if not profile.shared_prefixes:
        yield "  no two prompts share a block"
        return
    yield (
        f"  {profile.rows_sharing:,} prompts share {_count(profile.shared_prefixes, 'prefix', 'prefixes')} of "
        f"{_quantiles(profile.prefix_tokens)} tokens"
    )
    for step in profile.sharing:
        yield f"    {step['tokens']:>12,} tokens shared by {step['rows_from']:,} to {step['rows_to']:,} prompts"
    size = profile.working_set_tokens * model.kv_token_bytes
    yield f"  working set of shared prefixes: {profile.working_set_tokens:,} tokens, {size / 1e9:.2f} GB of KV cache"


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def _quantiles(values: dict[str, int]) -> str:
    if values["min"] == values["max"]:
        return f"{values['min']:,}"
    return f"{values['min']:,} to {values['max']:,} (median {values['p50']:,}, p90 {values['p90']:,})"


def machine_line(gpu: Gpu, engines: int, gpus: int, kv_tokens: int, profile: Profile) -> str:
    share = profile.working_set_tokens / kv_tokens
    count = f"{engines} engines with" if engines > 1 else "1 engine with"
    return (
        f"{gpus} {gpu.name} ({gpu.source}), {count} {kv_tokens:,} tokens of KV cache; "
        f"the shared prefixes fill {share:.0%} of one"
    )


def start_lines(kv_tokens: int, knobs: Mapping[str, Any]) -> Iterator[str]:
    """What keeps engines from starting, whatever the prompts are; vLLM 0.26 and 0.27."""
    if kv_tokens < knobs["MAX_MODEL_LEN"]:
        yield (
            f"  no engine starts so: its KV cache must hold one request of MAX_MODEL_LEN = {knobs['MAX_MODEL_LEN']:,} "
            "tokens; lower that"
        )


def table_lines(results: Sequence[Timed], possible_hit_rate: float, floor_s: float) -> Iterator[str]:
    yield f"{'':24}{'hit rate':>9}{'at least':>11}{'against naive-batch':>24}{'running':>9}{'preempted':>11}"
    for result in sorted(results, key=lambda result: (result.forecast.strategy == BOUND, result.wall_s)):
        forecast = result.forecast
        hit_rate = "-" if forecast.hit_rate is None else f"{forecast.hit_rate:.1%}"
        speedup = f"{result.speedup:.2f}x ({result.lowest:.2f} to {result.highest:.2f})"
        yield (
            f"{forecast.strategy:24}{hit_rate:>9}{result.wall_s:>9,.1f} s{speedup:>24}"
            f"{forecast.mean_running:>9,.0f}{forecast.preemptions:>11,}"
        )
    yield f"{'possible':24}{possible_hit_rate:>9.1%}{floor_s:>9,.1f} s   (each block computed once; all overlapped)"


def advice_lines(advice: Advice, price: float | None, start_s: float) -> Iterator[str]:
    best = advice.best
    if not advice.worthwhile:
        yield "Nothing to be gained: no strategy is expected to be noticeably faster than naive-batch here."
        yield from (f"  {reason}" for reason in advice.reasons)
        yield f"  Cost: {_cost(advice.naive_gpu_hours, price)} at least."
        return
    gain = f"{best.speedup:.2f}x as fast as naive-batch ({best.lowest:.2f} to {best.highest:.2f})"
    if advice.pays_from_rows is None:
        name = best.forecast.strategy
        yield f"Keep {NAIVE}: {name} is expected {gain}, but finding its order takes longer than it saves."
    else:
        yield f"Run {best.forecast.strategy}: expected {gain}."
    yield from (f"  {reason}" for reason in advice.reasons)
    if advice.order_gain < WORTHWHILE:
        yield f"  Sorting, bucketing and routing have nothing to gain: {advice.order_gain - 1:.1%} over arrival order."
    else:
        gain = f"{advice.order_gain - 1:.0%} over the best in arrival order"
        yield f"  Sorting, bucketing, routing or planning alone gains {gain}."
    yield f"  Cost: {_cost(advice.gpu_hours, price)} at least, against {_cost(advice.naive_gpu_hours, price)}."
    if advice.pays_from_rows is not None:
        yield f"  {_pays(advice, start_s)}"


def _pays(advice: Advice, start_s: float) -> str:
    if advice.partial_batches and advice.saved_s < start_s:
        # Batches grow with the prompts: what one prompt gains here tells nothing of more of them.
        return (
            f"On so few prompts it saves {advice.saved_s:.1f} s, less than the engines' start takes ({start_s:.0f} s). "
            "Ask again with all of the job's."
        )
    return f"From {advice.pays_from_rows:,} prompts on it saves more than the engines take to start ({start_s:.0f} s)."


def _cost(gpu_hours: float, price: float | None) -> str:
    money = "" if price is None else f" ({gpu_hours * price:,.2f} at {price:g} an hour)"
    return f"{gpu_hours:,.2f} GPU hours{money}"


def change_lines(changes: Sequence[dict[str, Any]], answer: str) -> Iterator[str]:
    """Only cases in which another strategy than `answer` is the one to run."""
    others = [change for change in changes if change["best"] != answer]
    cases = ", ".join(change["case"] for change in changes)
    if not others:
        yield f"The answer would be the same with {cases}."
        return
    yield f"Tried as well: {cases}. With these another strategy would be the one to run:"
    for change in others:
        yield f"  {change['case']:32}{change['best']:26}{change['speedup']:.2f}x"
