"""The traffic that the knobs ask for, checked before any server starts."""

import math
from collections.abc import Iterable

import config
from harness import overrides, records
from harness.data import prompts
from harness.preflight import model_folder
from harness.serving import arrivals, trace, traffic
from harness.serving.scorecard import Workload
from harness.serving.traffic import Generator, Request, Sizes


def load(weights: bool = True) -> tuple[Workload, list[Request]]:
    """The offered traffic and the warm-up's requests; without `weights`, a server elsewhere has the model's.

    Raises ValueError or TraceError for knobs that cannot be run, or a model that is not there.
    """
    _check_knobs()
    (_, tokenizer), missing = model_folder.load(weights)
    if missing:
        raise ValueError("; ".join(map(str, missing)))
    words: list[str] = prompts.words(tokenizer).to_pylist()
    shares, sizes = traffic.mix(config.SERVING_MIX), traffic.configured_sizes()
    _check_lengths(shares, sizes)
    warm = Generator(words, shares, sizes, config.SERVING_SEED + 1).take(config.SERVING_WARMUP_REQUESTS)
    path = config.SERVING_TRACE and overrides.absolute(config.SERVING_TRACE)
    if path:
        requests = trace.load(path, tokenizer)
        return Workload(f"trace {records.portable(path)} ({trace.fingerprint(requests)})", None, requests), warm
    if config.SERVING_ARRIVALS == "replay":
        raise ValueError("SERVING_ARRIVALS 'replay': expected a trace with arrival times; set SERVING_TRACE")
    return Workload(f"mix {config.SERVING_MIX}", Generator(words, shares, sizes, config.SERVING_SEED)), warm


def _check_knobs() -> None:
    if config.SERVING_ARRIVALS not in arrivals.PROCESSES:
        raise ValueError(f"SERVING_ARRIVALS {config.SERVING_ARRIVALS!r}: expected one of {arrivals.PROCESSES}")
    above_zero = ("SERVING_BURSTINESS", "SERVING_SECONDS_PER_RATE", "SERVING_DRAIN_S", "SERVING_REQUEST_TIMEOUT_S")
    for name in (*above_zero, "SERVING_TTFT_TARGET_S", "SERVING_ITL_TARGET_S", "SERVING_AGENT_BURST"):
        value = getattr(config, name)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} {value!r}: expected a number above 0")
    for name in ("SERVING_RETRIES", "SERVING_SEED"):
        if getattr(config, name) < 0:
            raise ValueError(f"{name} {getattr(config, name)}: expected a whole number of at least 0")
    if config.SERVING_WARMUP_REQUESTS <= 8 or config.SERVING_RATES < 1 or config.SERVING_AGENT_PREFIXES < 1:
        raise ValueError(
            "expected SERVING_WARMUP_REQUESTS above 8, SERVING_RATES and SERVING_AGENT_PREFIXES of 1 or more; found "
            f"{config.SERVING_WARMUP_REQUESTS}, {config.SERVING_RATES} and {config.SERVING_AGENT_PREFIXES}"
        )


def _check_lengths(families: Iterable[str], sizes: Sizes) -> None:
    """A request that the server must refuse would be counted as its failure."""
    for family in families:
        prompt_len, output_len = traffic.longest(family, sizes)
        if prompt_len + output_len > config.MAX_MODEL_LEN:
            raise ValueError(
                f"family {family}: a request of up to {prompt_len} prompt and {output_len} output tokens is longer "
                f"than MAX_MODEL_LEN ({config.MAX_MODEL_LEN}). Lower the family's SERVING_ lengths, or raise it"
            )
