"""Refuses a run that cannot finish, or cannot be fair, within seconds and before any engine starts.

Everything that can be known beforehand is looked at, and all that is wrong is said at once: settings, GPUs, versions,
the model, the dataset row by row, room on disk. Rows are read once, so this also counts and fingerprints them.

    workload = preflight.run(cluster.gpus())

200,000 prompts of 512 tokens and 3,000 bytes take about 6 s on 2 cores. It is longer only where prompts must be
encoded, on all cores: those with more bytes than a prompt may have tokens, and all of them where output lengths vary.
Those 200,000 then take 1 to 3 minutes on 2 cores, and stderr says how far it is.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import config
from harness.preflight import bounds, capacity, disk, installation, kv_cache, load_format, model_folder, workload
from harness.preflight.problem import PreflightError, Problem
from harness.preflight.row_scan import Limit
from harness.preflight.workload import Workload
from harness.target_length import longest_output

__all__ = ["PreflightError", "Problem", "Workload", "run"]

FREE_GPUS_WAIT_S = 20.0


def require_gpus(node_gpus: Sequence[float], free_gpus: Callable[[], Sequence[float]]) -> None:
    """Raises PreflightError where the cluster's nodes have fewer GPUs than the engines need, or other jobs hold them.

    `free_gpus` is asked for a while: those of a run that has just ended are not free at once.
    """
    if missing := list(_gpus(node_gpus)):
        raise PreflightError(missing)
    if config.GPUS_PER_ENGINE == 0:
        return
    until = time.monotonic() + FREE_GPUS_WAIT_S
    while taken := list(_gpus(free_gpus(), "free ", "end the jobs that hold the others (`ray list actors`)")):
        if time.monotonic() > until:
            raise PreflightError(taken, passing=True)
        time.sleep(0.5)


def require_capacity(node_cpus: Sequence[float]) -> None:
    """Raises PreflightError where engines ask for more CPUs or memory than there are; `node_cpus`: of each node."""
    if short := list(capacity.problems(node_cpus)):
        raise PreflightError(short)


def run(node_gpus: Sequence[float] | None = None) -> Workload:
    """The workload of config.INPUT_PATH. Raises PreflightError with every problem that was found.

    `node_gpus`: GPUs of each node; None before a cluster is known, `require_gpus` then follows.
    """
    # Everything below computes with these.
    if impossible := [*bounds.impossible(vars(config)), *installation.absent()]:
        raise PreflightError(impossible)
    settings = list(bounds.contradictory(vars(config)))
    model, missing = model_folder.load()
    token_bytes = kv_cache.bytes_per_token(model.config) if model.config else None
    varying = config.OUTPUT_LEN_DISTRIBUTION != "fixed" and not settings
    rows, faults = workload.read(model.tokenizer, _prompt_limit(_kv_tokens(token_bytes)), varying)
    problems = [
        *settings,
        *(_gpus(node_gpus) if node_gpus is not None else ()),
        *installation.problems(),
        *missing,
        *load_format.problems(),
        *_kv_cache(token_bytes),
        *faults,
        *disk.problems(rows.prompt_bytes if rows else 0),
    ]
    if problems or rows is None:
        raise PreflightError(problems)
    return rows


def _gpus(node_gpus: Sequence[float], kind: str = "", otherwise: str = "add GPUs") -> Iterator[Problem]:
    """An engine that gets no GPU waits for one for ever, and so does the first prompt that is sent to it. It does so
    too where its GPUs are there, but not on one node."""
    engines, each = config.CONCURRENCY, config.GPUS_PER_ENGINE
    room = sum(int(gpus) // each for gpus in node_gpus) if each else engines
    if room >= engines:
        return
    most = max(map(int, node_gpus), default=0)
    found = f"{sum(node_gpus):g}"
    if sum(node_gpus) >= engines * each:
        found += f", at most {most} on a node: room for {room} engines, each on one node"
    change = f"Set GPUS_PER_ENGINE to {f'at most {most}' if most else '0 for CPU engines'}"
    change = f"Set CONCURRENCY to at most {room}" if room else change
    expected = f"{engines * each} {kind}GPUs in the Ray cluster (CONCURRENCY {engines} x {each})"
    yield Problem(expected, found, f"{change}, or {otherwise}")


def _kv_cache(token_bytes: int | None) -> Iterator[Problem]:
    """vLLM does not start where the longest request allowed would not fit, and says so only after loading."""
    if (held := _kv_tokens(token_bytes)) is not None and held < config.MAX_MODEL_LEN:
        yield Problem(
            f"a KV cache for one request of MAX_MODEL_LEN = {config.MAX_MODEL_LEN:,} tokens",
            f"{held:,} tokens in KV_CACHE_MEMORY_BYTES = {config.KV_CACHE_MEMORY_BYTES:,}",
            f"Raise it to {kv_cache.bytes_for(config.MAX_MODEL_LEN, token_bytes or 0):,}, or lower MAX_MODEL_LEN",
        )


def _kv_tokens(token_bytes: int | None) -> int | None:
    """None where the engine decides the KV cache's size, or where config.json alone does not tell."""
    if config.KV_CACHE_MEMORY_BYTES is None or token_bytes is None:
        return None
    return kv_cache.tokens_held(config.KV_CACHE_MEMORY_BYTES, token_bytes)


def _prompt_limit(kv_tokens: int | None) -> Limit:
    output = longest_output()
    tokens, reason = config.MAX_MODEL_LEN, f"MAX_MODEL_LEN {config.MAX_MODEL_LEN:,}"
    change = "Raise MAX_MODEL_LEN, lower OUTPUT_LEN"
    if kv_tokens is not None and kv_tokens < tokens:
        tokens, reason = kv_tokens, f"the KV cache's {kv_tokens:,}"
        change = "Raise KV_CACHE_MEMORY_BYTES, lower OUTPUT_LEN"
    if config.OUTPUT_LEN_DISTRIBUTION != "fixed":
        change += "_MAX"
    return Limit(tokens - output, f"{reason} less {output:,} of output", change)
