"""What every knob must keep to before anything computes with it: a run, a forecast or a simulation."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.data import storage
from harness.overrides import LOCAL_PATHS
from harness.preflight.problem import Problem
from harness.target_length import DISTRIBUTIONS, longest_output

Knobs = Mapping[str, Any]

# Engines, readers and pools that are given none of these fail late, wait for ever, or divide by it.
AT_LEAST_ONE = (
    "CONCURRENCY",
    "MAX_NUM_SEQS",
    "MAX_NUM_BATCHED_TOKENS",
    "BLOCK_SIZE",
    "NAIVE_BATCH_SIZE",
    "NAIVE_PARTITIONS",
    "CONTINUOUS_BATCH_SIZE",
    "CONTINUOUS_PARTITIONS",
    "RAY_BATCH_SIZE",
    "RAY_MAX_CONCURRENT_BATCHES",
    "RAY_BLOCKS",
    "ROUTER_MAX_BUFFER_SIZE",
    "ROUTER_MIN_BUCKET_SIZE",
    "WATCHDOG_STALL_S",
    "WATCHDOG_START_S",
    "PLANNED_MAX_IN_FLIGHT",
    "PLANNED_WINDOW_TOKENS",
    # Where they are set at all.
    "KV_CACHE_MEMORY_BYTES",
    "RAY_NUM_CPUS",
)
AT_LEAST_ZERO = (
    "GPUS_PER_ENGINE",
    "PROBE_INTERVAL_S",
    "PROGRESS_INTERVAL_S",
    "ROUTER_LOAD_BALANCE_THRESHOLD",
    "PLANNED_PACE",
    "PLANNED_BURST_TOKENS",
    "PLANNED_RESTARTS",
    "PLANNED_PART_S",
)
# Engines and Arrow count tokens and rows in 32 bits; of the others each costs memory, or a message, though it is empty.
AT_MOST: dict[int, tuple[str, ...]] = {
    2**31 - 1: (
        "MAX_MODEL_LEN",
        "MAX_NUM_BATCHED_TOKENS",
        "BLOCK_SIZE",
        "OUTPUT_LEN",
        "OUTPUT_LEN_MAX",
        "NAIVE_BATCH_SIZE",
        "CONTINUOUS_BATCH_SIZE",
        "RAY_BATCH_SIZE",
        "ROUTER_MAX_BUFFER_SIZE",
    ),
    100_000: (
        "CONCURRENCY",
        "GPUS_PER_ENGINE",
        "MAX_NUM_SEQS",
        "NAIVE_PARTITIONS",
        "CONTINUOUS_PARTITIONS",
        "RAY_MAX_CONCURRENT_BATCHES",
        "RAY_BLOCKS",
        "RAY_NUM_CPUS",
    ),
}
SHARES = ("GPU_MEMORY_UTILIZATION", "ROUTER_PREFIX_MATCH_THRESHOLD")


def require(knobs: Knobs) -> None:
    """Raises ValueError, with all that is wrong, for knobs that no run would start with."""
    if problems := list(impossible(knobs)) or list(contradictory(knobs)):
        raise ValueError("\n".join(map(str, problems)))


def impossible(knobs: Knobs) -> Iterator[Problem]:
    """What nothing can be computed with, not even further problems."""
    lower: dict[int, tuple[str, ...]] = {1: AT_LEAST_ONE, 0: AT_LEAST_ZERO}
    for least, names in lower.items():
        for name in names:
            if (value := knobs[name]) is not None and value < least:
                yield Problem(f"{name} of at least {least}", f"{value:g}", f"Set {name}")
    for most, names in AT_MOST.items():
        for name in names:
            if (value := knobs[name]) is not None and value > most:
                yield Problem(f"{name} of at most {most:,}", f"{value:,}", f"Set {name}")
    endpoint, on_s3 = knobs["S3_ENDPOINT_URL"], any(str(knobs[name]).startswith("s3://") for name in LOCAL_PATHS)
    if on_s3 and endpoint is not None and not storage.is_endpoint(endpoint):
        yield Problem(f"S3_ENDPOINT_URL as {storage.ENDPOINT_FORM}", repr(endpoint), "Set S3_ENDPOINT_URL")


def contradictory(knobs: Knobs) -> Iterator[Problem]:
    """Knobs that are off on their own account or do not fit each other."""
    for name in SHARES:
        if not 0 <= (share := knobs[name]) <= 1:
            yield Problem(f"{name} of 0 to 1", f"{share:g}", f"Set {name}")
    if knobs["GPU_MEMORY_UTILIZATION"] == 0:  # vLLM takes no engine without memory
        yield Problem("GPU_MEMORY_UTILIZATION above 0", "0", "Set GPU_MEMORY_UTILIZATION")
    if knobs["MAX_NUM_BATCHED_TOKENS"] < knobs["MAX_NUM_SEQS"]:
        expected = f"a token in each step for each of MAX_NUM_SEQS ({knobs['MAX_NUM_SEQS']:,}) sequences"
        yield Problem(expected, f"MAX_NUM_BATCHED_TOKENS {knobs['MAX_NUM_BATCHED_TOKENS']:,}", "Set one of the two")
    yield from _output_lengths(knobs)


def _output_lengths(knobs: Knobs) -> Iterator[Problem]:
    if (distribution := knobs["OUTPUT_LEN_DISTRIBUTION"]) not in DISTRIBUTIONS:
        yield Problem(f"one of {', '.join(DISTRIBUTIONS)}", repr(distribution), "Set OUTPUT_LEN_DISTRIBUTION")
    if not 1 <= knobs["OUTPUT_LEN_MIN"] <= knobs["OUTPUT_LEN_MAX"]:
        found = f"{knobs['OUTPUT_LEN_MIN']} and {knobs['OUTPUT_LEN_MAX']}"
        yield Problem("1 <= OUTPUT_LEN_MIN <= OUTPUT_LEN_MAX", found, "Set the two bounds")
    longest, most = longest_output(knobs), knobs["MAX_MODEL_LEN"] - 1
    if not 1 <= longest <= most:
        expected = f"outputs of 1 to {most:,} tokens (MAX_MODEL_LEN less a token of the prompt)"
        yield Problem(expected, f"{longest:,}", "Set OUTPUT_LEN or OUTPUT_LEN_MAX, or raise MAX_MODEL_LEN")
