"""Groups records into sections of equal conditions, and sets apart the runs that broke them.

Within a section every run was asked for the same: dataset, configuration, hardware, versions; knobs that one strategy
alone reads part no section. A run whose engines nevertheless ran with something else than the other runs of its
strategy (a smaller cache, a warm one), whose strategy's own knobs were set otherwise, or that did not do all of its
work in one go, is set apart with the reason; medians and effects leave it out, the report lists it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from string import ascii_uppercase

from harness.comparison.comparability import (
    asked_differences,
    dataset_name,
    distinctions,
    disturbances,
    own_differences,
    read_back_differences,
)
from harness.comparison.trials import STRATEGIES
from harness.schema import Record


@dataclass
class Section:
    name: str
    runs: list[Record]
    kept: list[Record] = field(default_factory=list)
    set_apart: list[tuple[Record, list[str]]] = field(default_factory=list)

    @property
    def first(self) -> Record:
        """A record that stands for the section's conditions: a finished one if there is one."""
        return (self.kept or self.runs)[0]

    @property
    def card(self) -> str:
        """What the engines ran on, unless no run got as far as to know."""
        gpus = next((run["hardware"].get("gpus") or ["CPU"] for run in self.runs if run["hardware"]), [""])
        return str(gpus[0]).removeprefix("NVIDIA ")

    @property
    def unsuccessful(self) -> list[Record]:
        return [run for run in self.runs if run["status"] != "ok"]

    def of(self, strategy: str) -> list[Record]:
        return [run for run in self.kept if run["strategy"] == strategy]

    def of_arm(self, name: str) -> list[Record]:
        return [run for run in self.kept if arm(run) == name]

    def arms(self) -> list[str]:
        """Labels in the section, in the suite's order of strategies, a twin right after its own."""
        labels = {arm(run): run["strategy"] for run in self.runs}
        return sorted(labels, key=lambda label: (*rank(labels[label]), label))

    def strategies(self) -> list[str]:
        """Strategies with a valid run, in the suite's order."""
        return sorted({run["strategy"] for run in self.kept}, key=rank)


def rank(strategy: str) -> tuple[int, str]:
    """Sorts strategies in the suite's order, others after them by name."""
    return STRATEGIES.index(strategy) if strategy in STRATEGIES else len(STRATEGIES), strategy


def arm(record: Record) -> str:
    """The label under which a run takes part: its strategy, or the second label of the strategy that is run twice."""
    return record["config"].get("COMPARISON_ARM") or str(record["strategy"])


def block(record: Record) -> str:
    """Runs of one block were started one after another in random order, on the same cards; a run by hand is a block of
    its own, and so is what a comparison ran of a block after it was continued on another machine."""
    comparison, trial = (record["config"].get(name) for name in ("COMPARISON_ID", "COMPARISON_TRIAL"))
    cards = " ".join((record["hardware"] or {}).get("gpu_ids") or [])
    return f"{comparison} trial {trial} {cards}" if comparison and trial else str(record["run_id"])


def group(records: Sequence[Record]) -> list[Section]:
    """Sections with GPUs first, in order of their dataset's name; failed runs, which know less, join where they fit."""
    sections: list[Section] = []
    for record in sorted(records, key=lambda record: record["status"] != "ok"):
        home = next((section for section in sections if not asked_differences(section.runs[0], record)), None)
        if home is None:
            sections.append(Section("", [record]))
        else:
            home.runs.append(record)
    sections.sort(key=lambda section: _place(section.runs[0]))
    for section in sections:
        section.runs.sort(key=lambda run: run["started_at"])
        section.name = _conditions(section)
        _set_apart(section)
    for number, (section, words) in enumerate(zip(sections, _told_apart(sections), strict=True)):
        section.name = f"{_letter(number)}: {', '.join([section.name, *words])}"
    return sections


def _place(run: Record) -> tuple[bool, str, str]:
    return not (run["hardware"] or {}).get("gpus"), dataset_name(run), run["started_at"]


def _letter(number: int) -> str:
    letters = ascii_uppercase
    return letters[number] if number < len(letters) else f"{letters[number // 26 - 1]}{letters[number % 26]}"


def _conditions(section: Section) -> str:
    """The conditions that sections usually differ in, in a few words; the report lists all of them elsewhere."""
    runs, knobs = section.runs, section.runs[0]["config"]
    name = next((name for run in runs if (name := (run["dataset"] or {}).get("name"))), dataset_name(runs[0]))
    words = [*filter(None, [section.card]), PurePath(str(name)).name.removesuffix(".parquet")]
    if knobs.get("KV_CACHE_MEMORY_BYTES"):
        words.append(f"KV cache {knobs['KV_CACHE_MEMORY_BYTES'] / 1e9:.3g} GB")
    if knobs.get("OUTPUT_LEN_DISTRIBUTION", "fixed") != "fixed":
        words.append(f"{knobs['OUTPUT_LEN_DISTRIBUTION']} output lengths")
    if knobs.get("CONCURRENCY", 1) != 1:
        words.append(f"{knobs['CONCURRENCY']} engines")
    return ", ".join(words)


def _told_apart(sections: list[Section]) -> list[list[str]]:
    """For each section the conditions in which it differs from others of the same name."""
    namesakes = [[other.first for other in sections if other.name == section.name] for section in sections]
    return [distinctions(section.first, alike) for section, alike in zip(sections, namesakes, strict=True)]


def _set_apart(section: Section) -> None:
    ended = [run for run in section.runs if run["status"] == "ok"]
    section.set_apart += [(run, reasons) for run in ended if (reasons := disturbances(run))]
    finished = [run for run in ended if not disturbances(run)]
    for strategy in dict.fromkeys(run["strategy"] for run in finished):
        runs = [run for run in finished if run["strategy"] == strategy]
        usual = _usual(runs)
        for run in runs:
            differences = [] if run is usual else own_differences(usual, run) + read_back_differences(usual, run)
            if differences:
                section.set_apart.append((run, differences))
            else:
                section.kept.append(run)


def _usual(runs: list[Record]) -> Record:
    """The run by which the others of its strategy are judged. Of its own knobs the newest values count, since somebody
    changed them; of what engines ran with, what most runs had. A run by hand among blocks is a try."""
    newest = max(runs, key=lambda run: (block(run) != run["run_id"], run["started_at"]))
    alike = [run for run in reversed(runs) if not own_differences(newest, run)]
    return max(alike, key=lambda run: sum(not read_back_differences(run, other) for other in alike))
