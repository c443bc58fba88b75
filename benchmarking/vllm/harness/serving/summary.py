"""The scorecard's tables, and the JSON that ends a run."""

from collections.abc import Sequence
from typing import Any

from harness.report.tables import UNKNOWN, Table, figure, per_cent
from harness.serving import cost, decisions, figures
from harness.serving.decisions import completed_rps
from harness.serving.sections import Section, began_cold
from harness.serving.server_metrics import quantile_bounds

Row = dict[str, Any]

UNCERTIFIED = "*"
NOTE = (
    f"Seconds. {UNCERTIFIED}: fewer completed requests than MLPerf's early stopping needs to certify that percentile "
    "(130 for p95). TTFT and end to end count from the scheduled arrival. Completed/s counts to the last end, so a "
    "row's drain lowers it."
)
SIDES_NOTE = (
    "Queue time is the bucket of the server's own histogram, s. Errors are failed and refused requests among those "
    "that were not cancelled. Client late: p99 of sending after the scheduled arrival."
)

NO_WINNER = "No configuration meets the targets at any rate that was offered."
NONE_COLD = (
    "Nothing is compared: every row began, or may have begun, with what earlier ones had left in the prefix cache. "
    "Start the server with VLLM_SERVER_DEV_MODE=1, so that it can be emptied between rows, and its /metrics in reach."
)


def scorecard(section: Section, price: float | None) -> Table:
    """A row a configuration and rate, and its repeat: what callers got, and what it cost."""
    header = (
        *("configuration", "offered/s", "completed/s", "output tokens/s", "TTFT p50", "TTFT p95", "ITL p95"),
        *("end to end p95", "accepted/s", f"{decisions.unit(section.first, price)} / accepted", "targets"),
    )
    return Table("Scorecard", header, [_caller_cells(row, price) for row in _measured(section)], NOTE)


def sides(section: Section) -> Table:
    """The same rows: what the server did, and how well the client held the rate."""
    header = (
        *(
            "configuration",
            "offered/s",
            "queue p95",
            "errors",
            "cancelled",
            "preemptions",
            "hit rate",
            "running at most",
        ),
        *("waiting at most", "KV used at most", "GPU memory, GB", "GPU used", "client late", "cache"),
    )
    rows = [_server_cells(row) for row in _measured(section)]
    return Table("Server and client", header, rows, SIDES_NOTE).without_empty_columns()


def _measured(section: Section) -> list[Row]:
    order = section.configurations
    rows = [row for row in section.rows if row["status"] == "ok"]
    return sorted(rows, key=lambda row: (order.index(row["configuration"]), _offered(row), bool(row["repeat_of"])))


def causes(section: Section) -> Table:
    """Why each row is as it is."""
    header = ("configuration", "offered/s", "first matching cause", "evidence", "change next")
    rows = [
        (row["configuration"], _rate(row), *(row["diagnosis"][name] for name in ("cause", "evidence", "change")))
        for name in section.configurations
        for row in section.measured(name)
    ]
    return Table("Diagnosis", header, rows)


def decision_list(section: Section, price: float | None) -> Table:
    found = decisions.of(section, price)
    rows = [(one.configuration, one.question, one.answer) for one in found]
    return Table("Decisions", ("configuration", "question", "answer"), rows, verdict(section, price))


def failures(section: Section) -> Table:
    """Configurations without a row, and every cause of failure with an example."""
    rows = [
        (row["configuration"], UNKNOWN, "not measured", " / ".join(_ends(row["error"]))) for row in section.failed()
    ]
    rows += [
        (row["configuration"], _rate(row), f"{count} failed: {cause}", row["details"].get(cause, UNKNOWN))
        for row in section.rows
        if row["status"] == "ok"
        for cause, count in row["causes"].items()
    ]
    return Table("Failures", ("configuration", "offered/s", "what", "example"), rows)


def verdict(section: Section, price: float | None) -> str:
    """Which configuration wins, and against what; where costs are level, what sets them apart beyond the targets."""
    found = decisions.winner(section, price)
    if found is None:
        return NO_WINNER if section.compared or len(section.failed()) == len(section.rows) else NONE_COLD
    name, paid, row = found
    tokens = max(section.compared, key=_tokens_per_s)
    told = f"{figure(paid)} {decisions.unit(row, price)} an accepted response at {_rate(row)}/s offered"
    most = f"most tokens/s: {figure(_tokens_per_s(tokens))} by {tokens['configuration']} at {_rate(tokens)}/s"
    doubt = "" if row["client"]["held"] else " The client did not hold that rate."
    level = [one[0] for one in decisions.level(section, price)]
    if len(level) == 1:
        sentence = (
            f"{name} meets the targets at the lowest cost: {told}, {figure(decisions.goodput_rps(row))}/s accepted"
        )
        return f"{sentence} ({most}).{doubt}"
    sentence = f"{', '.join(level)} meet the targets at costs that differ no more than repeats do: {told} with {name}"
    return f"{sentence} ({most}).{_beyond(section, level)}{doubt}"


def _beyond(section: Section, level: Sequence[str]) -> str:
    found = decisions.accepted_beyond(section, level)
    if found is None:
        return ""
    rate, accepted = found
    ranked = sorted(accepted.items(), key=lambda one: -one[1])
    told = ", ".join(f"{name} {figure(rps)}/s" for name, rps in ranked)
    return f" Beyond them, at {rate:g}/s offered, one row each accepted: {told}."


def as_json(section: Section, price: float | None) -> dict[str, Any]:
    """The last line of stdout: the winner, and each row in short."""
    found = decisions.winner(section, price)
    return {
        "winner": found[0] if found else None,
        "level": [one[0] for one in decisions.level(section, price)],
        "cost_per_accepted": found[1] if found else None,
        "cost_unit": decisions.unit(section.first, price),
        "targets": section.first["targets"],
        "decisions": [vars(one) for one in decisions.of(section, price)],
        "rows": [_short(row, price) for row in section.rows],
    }


def _short(row: Row, price: float | None) -> dict[str, Any]:
    if row["status"] != "ok":
        return {key: row[key] for key in ("row_id", "configuration", "status", "error")}
    latency = row["latency"]
    return {
        **{
            key: row[key]
            for key in ("row_id", "configuration", "status", "counts", "causes", "violations", "diagnosis")
        },
        "offered_rps": row["rate"]["offered_rps"],
        "completed_rps": completed_rps(row),
        "goodput_rps": decisions.goodput_rps(row),
        "output_tokens_per_s": _tokens_per_s(row),
        "ttft_p95_s": latency["ttft_s"]["p95"],
        "itl_p95_s": latency["itl_s"]["p95"],
        "e2e_p95_s": latency["e2e_s"]["p95"],
        "cost_per_accepted": cost.per_accepted(row, price),
    }


def _caller_cells(row: Row, price: float | None) -> tuple[str, ...]:
    latency, completed = row["latency"], row["counts"]["completed"]
    return (
        *_name_cells(row),
        figure(completed_rps(row)),
        figure(_tokens_per_s(row)),
        figure(latency["ttft_s"]["p50"]),
        *(_percentile(latency[key], 95, completed) for key in ("ttft_s", "itl_s", "e2e_s")),
        figure(decisions.goodput_rps(row)),
        figure(cost.per_accepted(row, price)),
        _targets(row),
    )


def _targets(row: Row) -> str:
    beyond = "; ".join(text.partition(",")[0] for text in row["violations"]) or "hold"
    return beyond if began_cold(row) else f"{beyond} (cache {row['cache_state']}: not compared)"


def _server_cells(row: Row) -> tuple[str, ...]:
    server, late = row["server"], row["client"]["lateness_s"]["p99"]
    memory = server["gpu_memory_high_bytes"]
    return (
        *_name_cells(row),
        _queue(server.get("queue_time")),
        _errors(row),
        figure(row["counts"]["cancelled"]),
        figure(server["preemptions"]),
        per_cent(hit_rate(row)),
        *(UNKNOWN if server[name] is None else f"{server[name]:.0f}" for name in ("running_max", "waiting_max")),
        per_cent(server["kv_cache_usage_max"]),
        figure(memory / 1e9 if memory else None),
        per_cent(server["gpu_utilization_mean"]),
        UNKNOWN if late is None else f"{1000 * late:.1f} ms",
        row["cache_state"],
    )


def _name_cells(row: Row) -> tuple[str, str]:
    name = row["configuration"] + (" (again)" if row["repeat_of"] else "")
    return name, _rate(row) + ("" if row["client"]["held"] else " not held")


def _errors(row: Row) -> str:
    """Share of the requests that were not cancelled, and how many by cause."""
    counts = row["counts"]
    kept, lost = counts["offered"] - counts["cancelled"], counts["failed"] + counts["refused"]
    if not lost:
        return "0"
    by_cause = {**row["causes"], **({"refused": counts["refused"]} if counts["refused"] else {})}
    return f"{per_cent(lost / kept)} ({', '.join(f'{count} {cause}' for cause, count in by_cause.items())})"


def hit_rate(row: Row) -> float | None:
    queries, hits = (row["server"][f"prefix_cache_{name}"] for name in ("queries", "hits"))
    return hits / queries if queries else None


def _percentile(spread: dict[str, Any], percentile: int, requests: int) -> str:
    mark = "" if figures.is_certified(percentile, requests) else UNCERTIFIED
    value = spread[f"p{percentile}"]
    return figure(value) + (mark if value is not None else "")


def _queue(histogram: Row | None) -> str:
    bounds = quantile_bounds(histogram, 0.95)
    if bounds is None:
        return UNKNOWN
    low, high = bounds
    return f"> {low:g}" if high is None else f"{low:g} to {high:g}"


def _tokens_per_s(row: Row) -> float:
    return row["output_tokens"] / float(row["wall_s"]) if row["wall_s"] else 0.0


def _offered(row: Row) -> float:
    return float(row["rate"]["offered_rps"])


def _rate(row: Row) -> str:
    return f"{row['rate']['offered_rps']:g}"


def _ends(error: str | None) -> Sequence[str]:
    lines = (error or UNKNOWN).splitlines()
    return [line[:200] for line in (lines[:4] if len(lines) > 4 else lines)]
