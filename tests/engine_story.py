"""Engine logs written by hand, for tests of what is computed from them. No engine is involved."""

from typing import Any

from harness.engine_log import EngineLog
from harness.engine_metrics import SERIES


def story(
    name: str,
    imported: float = 2.0,
    core: float = 4.0,
    ready: float | None = 10.0,
    samples: tuple[tuple[float, int], ...] = ((10.0, 0), (20.0, 1000)),
    **latest: Any,
) -> list[dict[str, Any]]:
    """Messages of one engine; times in seconds, `samples` are (time, tokens generated so far)."""
    told = {"engine": name, "node": "node", "pid": 1}
    counters = {"prefix_cache_queries": 0, "preemptions": 0, "generation_tokens": 0, "prompt_tokens": 0}
    messages: list[dict[str, Any]] = [
        {"kind": "importing", "at": imported, "vllm_imported_at": imported},
        {"kind": "building", "at": core, "core_started_at": core, "cores": [2]},
    ]
    if ready is not None:
        start = {"weights_s": 1.0, "init_s": 2.0}
        messages.append(
            {
                "kind": "ready",
                "at": ready,
                "ready_at": ready,
                "settings": {"max_num_seqs": 8},
                "start": start,
                "counters": counters,
            }
            | {"actor": None, "cores": [2, 3]}
        )
        last = {"first_scheduled_at": samples[0][0], "last_token_at": samples[-1][0], **latest}
        messages += [
            {
                "kind": "sample",
                "at": at,
                "counters": counters,
                "values": dict.fromkeys(SERIES, 0) | {"generation_tokens": tokens} | last,
            }
            for at, tokens in samples
        ]
    return [{**told, "received_at": message["at"], **message} for message in messages]


def log_of(*stories: list[dict[str, Any]]) -> EngineLog:
    log = EngineLog()
    for messages in stories:
        log.extend(messages)
    return log
