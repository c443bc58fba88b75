"""Rows that may be compared: offered and measured under the same conditions, the newest run of each configuration."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.serving.prefix_cache import COLD

Row = dict[str, Any]

# Knobs that may differ between rows of one section: what is compared, how many rates, where things lie, other scripts'.
FREE = (
    "SERVING_CONFIGURATIONS",
    "SERVING_RATES",
    "INPUT_PATH",
    "LOGICAL_GPUS",
    "RESULTS_PATH",
    "OUTPUT_PATH",
    "COMMIT",
    "RUN_LABEL",
)
FREE_STARTS = (
    "COMPARISON_",
    "NAIVE_",
    "CONTINUOUS_",
    "RAY_",
    "ROUTER_",
    "PLANNED_",
    "DATASET",
    "WATCHDOG_",
    "PROBE_",
    "TRIAL_",
)
HARDWARE = ("cpu", "cpus", "gpus")


@dataclass(frozen=True)
class Section:
    """`rows` in the order in which they were measured."""

    rows: Sequence[Row]

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def configurations(self) -> list[str]:
        return list(dict.fromkeys(row["configuration"] for row in self.rows))

    @property
    def compared(self) -> list[Row]:
        """Measured rows that began on a cold cache: what others found there, or may have, earlier rows had paid for."""
        return [row for row in self.rows if row["status"] == "ok" and began_cold(row)]

    def measured(self, configuration: str) -> list[Row]:
        """Rows that are compared, by rising rate, repeats left out."""
        rows = [row for row in self.compared if row["configuration"] == configuration and not row["repeat_of"]]
        return sorted(rows, key=lambda row: float(row["rate"]["offered_rps"]))

    def repeats(self, configuration: str) -> list[tuple[Row, Row]]:
        """(first, repeated) row at one rate."""
        by_id = {row["row_id"]: row for row in self.rows}
        rows = [row for row in self.rows if row["configuration"] == configuration and row["status"] == "ok"]
        return [(by_id[row["repeat_of"]], row) for row in rows if row["repeat_of"] in by_id]

    def failed(self) -> list[Row]:
        return [row for row in self.rows if row["status"] != "ok"]

    def best(self, configuration: str) -> Row | None:
        """The highest rate at which the targets held, none above a rate at which they did not."""
        holding = []
        for row in self.measured(configuration):
            if row["violations"]:
                break
            holding.append(row)
        return holding[-1] if holding else None


def began_cold(row: Row) -> bool:
    return bool(row["cache_state"] == COLD)


def group(rows: Iterable[Row]) -> list[Section]:
    """Sections, newest last. Of each configuration only the newest scorecard's rows count."""
    rows = list(rows)
    newest = {(conditions(row), row["configuration"]): row["scorecard_id"] for row in rows}
    sections: dict[str, list[Row]] = {}
    for row in rows:
        key = conditions(row)
        if newest[key, row["configuration"]] == row["scorecard_id"]:
            sections.setdefault(key, []).append(row)
    return [Section(found) for found in sections.values()]


def conditions(row: Row) -> str:
    """Equal for rows that may be compared."""
    knobs = {name: value for name, value in row["config"].items() if not _is_free(name)}
    hardware = {name: row["hardware"].get(name) for name in HARDWARE}
    told = json.dumps([knobs, hardware, row["versions"], row["targets"], _traffic(row), _unasked(row)], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def _traffic(row: Row) -> list[Any]:
    """What was offered, beyond the knobs: a trace that took another's place under its path, or a generator that draws
    other requests by now, is other traffic."""
    return [(row["traffic"] or {}).get(name) for name in ("source", "version")]


def _unasked(row: Row) -> Row | None:
    """What a server that somebody else started says it runs with, whatever the knobs are; a configuration's server here
    differs from the others by its control alone."""
    return row["settings"] if row["status"] == "ok" and row["server_command"] is None else None


def _is_free(name: str) -> bool:
    return name in FREE or name.startswith(FREE_STARTS)
