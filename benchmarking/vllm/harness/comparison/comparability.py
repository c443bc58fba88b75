"""Whether two runs may be compared: what must agree, and what differs.

Two kinds of facts. Those that were *asked for* (dataset, configuration, hardware, versions) sort records into the
report's sections; nothing is averaged across sections. Those that were *read back* (engines' settings, number of
engines, cache state) are compared inside a section, where a difference means that the race was not fair.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from harness.overrides import NOT_OF_RUNS
from harness.schema import Record

# Sizes that a machine measures for itself vary between equal starts: on a GPU, the KV cache is what profiling leaves.
# 1 % of an H200's cache is about 1 GB, more than a CUDA context; it cannot move a hit rate by more than a point.
MEASURED_TOLERANCE = 0.01
MEASURED = ("num_gpu_blocks", "driver_memory_bytes")

# Without these no fairness can be claimed, so an unknown one counts as a difference; other unknowns are caveats.
LIMITS = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks")

# How a setting reads in which the engines of one run differ.
UNEQUAL = "unequal engines:"

# Records that do not hold their number of files are from when every dataset had so many.
FILES_BEFORE = 8

# Knobs that say where things are, how a run is watched or what it costs, not what is run.
NOT_CONDITIONS = {
    "INPUT_PATH",  # the dataset's fingerprint is compared instead
    "DATASETS_PATH",
    "S3_ENDPOINT_URL",
    "RESULTS_PATH",
    "RUN_LABEL",
    "COMMIT",
    "PROGRESS_INTERVAL_S",
    "WATCHDOG_STALL_S",
    "WATCHDOG_START_S",
    "GPU_PRICE_PER_HOUR",
    "TRIAL_TIMEOUT_S",
    "COMPARISON_ID",
    "COMPARISON_TRIAL",
    "COMPARISON_PLACE",
    "COMPARISON_ARM",
    "SAMPLING_PARAMS",  # follows from the output length
}

# Knobs that only these strategies read, by how their names begin. Other strategies' runs are the same with any value.
OWN_KNOBS = {
    "NAIVE_": ("naive-batch", "naive-batch-sorted"),
    "CONTINUOUS_": ("continuous-batch", "continuous-batch-sorted", "prefix-bucketing", "prefix-bucketing-sorted"),
    "ROUTER_": ("prefix-bucketing", "prefix-bucketing-sorted"),
    "RAY_B": ("ray-data",),
    "RAY_MAX_": ("ray-data",),
    "PLANNED_": ("prefix-planned",),
}

# Read where output lengths vary.
OUTPUT_RANGE = ("OUTPUT_LEN_MIN", "OUTPUT_LEN_MAX")
# What ended each request at its own length until 2026-11-30; records of then do not name it.
FORMER_ENDING = "harness.output_length:ForcedLength"

Facts = dict[str, Any]


def differences(a: Record, b: Record) -> list[str]:
    """All that makes two runs not comparable, as "name: value of a / value of b"; empty when they may be compared."""
    return asked_differences(a, b) + read_back_differences(a, b)


def asked_differences(a: Record, b: Record) -> list[str]:
    """What was asked for differently. A fact that a run does not know (it failed early) contradicts nothing."""
    first, second = asked(a), asked(b)
    # A knob that one record's suite did not have yet had no influence there.
    shared = [name for name in first if name in second and not _readers(name)]
    return dataset_difference(a, b) + _unequal(first, second, shared)


def distinctions(record: Record, others: Sequence[Record]) -> list[str]:
    """What was set in a run otherwise than in some of the others, as "name value"; of a path the last part. Of a
    machine's facts, which differ together, as few as tell it from each other one."""
    facts, machine = asked(record), record["hardware"] or {}
    values: dict[str, str] = {}
    for other in others:
        sides = [text.rpartition(" / ")[0].partition(": ") for text in asked_differences(record, other)]
        of_machine = [name for name, _, _ in sides if name in machine]
        unneeded = of_machine if values.keys() & set(of_machine) else of_machine[1:]
        found = {name: value for name, _, value in sides if name not in unneeded}
        values |= {name: described(name, facts[name]) if name in facts else value for name, value in found.items()}
    ends = {name: value.rpartition(":")[2].rpartition("/")[2] for name, value in values.items()}
    return [f"{name} {end}" for name, end in ends.items() if end != "None"]


def described(name: str, value: Any) -> str:
    """A condition's value for readers: sizes in GB, equal things counted."""
    if isinstance(value, list):
        items = [str(item) for item in value]
        return ", ".join(f"{items.count(item)} x {item}" for item in dict.fromkeys(items)) or "none"
    if name.lower().endswith("_bytes") and isinstance(value, int | float):
        return f"{value / 1e9:,.4g} GB"
    whole = isinstance(value, float) and (value >= 1000 or value.is_integer())
    return f"{value:,.0f}" if whole else str(value)


def own_differences(a: Record, b: Record) -> list[str]:
    """Between two runs of one strategy: knobs of its own that were set differently."""
    first, second = conditions(a["config"]), conditions(b["config"])
    own = [name for name in first if name in second and concerns(name, a["strategy"]) and _readers(name)]
    return _unequal(first, second, own)


def concerns(knob: str, strategy: str) -> bool:
    """Whether a run of the strategy depends on the knob; one that the suite does not know may read any."""
    readers = _readers(knob)
    known = any(strategy in names for names in OWN_KNOBS.values())
    return not readers or strategy in readers or not known


def read_back_differences(a: Record, b: Record) -> list[str]:
    """What the engines really ran with, as far as it differs; a limit that is unknown, or not the same in all engines
    of a run, is a difference."""
    first, second = read_back(a), read_back(b)
    unclear = [name for name in (*LIMITS, "cache_state") if _is_unclear(first[name]) or _is_unclear(second[name])]
    texts = [f"{name}: {_known(first[name])} / {_known(second[name])}" for name in unclear]
    known = [name for name in first if first[name] is not None and second.get(name) is not None]
    return texts + _unequal(first, second, [name for name in known if name not in unclear])


def disturbances(record: Record) -> list[str]:
    """Why a run with good answers is no measurement: it did not do all of the work, or did some of it twice."""
    rows = record["rows"] or {}
    texts = {"continued": "rows were answered by an earlier run", "redone": "rows ran twice because an engine died"}
    return [f"{rows[kind]:,} {text}" for kind, text in texts.items() if rows.get(kind)]


def unknowns(record: Record) -> list[str]:
    """Settings that this run's engines did not report and that are not limits: a caveat, not an obstacle."""
    return [name for name, value in read_back(record).items() if value is None and name not in LIMITS]


def asked(record: Record) -> Facts:
    """Configuration, hardware and versions as flat facts (the dataset is compared by its fingerprint)."""
    # Which cards of a kind they were parts no section, but blocks (sections.py).
    hardware = {name: value for name, value in (record["hardware"] or {}).items() if name != "gpu_ids"}
    versions = {f"version of {name}": value for name, value in (record["versions"] or {}).items()}
    return {**conditions(record["config"]), **hardware, **versions}


def conditions(config: Mapping[str, Any]) -> Facts:
    """The knobs that can move a strategy's number."""
    idle = OUTPUT_RANGE if config.get("OUTPUT_LEN_DISTRIBUTION") == "fixed" else ()
    names = [name for name in config if name not in {*NOT_CONDITIONS, *idle} and not name.startswith(NOT_OF_RUNS)]
    knobs = {name: config[name] for name in names}
    if _ended_by_a_processor(config):
        knobs["LOGITS_PROCESSORS"] = _with_former_ending(knobs.get("LOGITS_PROCESSORS") or "")
    return {name: _folder_name(value) if name == "MODEL_NAME" else value for name, value in knobs.items()}


def _ended_by_a_processor(config: Mapping[str, Any]) -> bool:
    """Since the scheduler does it, both bounds are in the parameters of a run with lengths that vary."""
    varying = config.get("OUTPUT_LEN_DISTRIBUTION", "fixed") != "fixed"
    return varying and "min_tokens" not in (config.get("SAMPLING_PARAMS") or {})


def _with_former_ending(named: str) -> str:
    """The engines of then got it after those that the knob names, where that did not name it too."""
    names = [name.strip() for name in named.split(",") if name.strip()]
    return ",".join(names if FORMER_ENDING in names else [*names, FORMER_ENDING])


def read_back(record: Record) -> Facts:
    """Number of engines, cache state, and the settings in which all engines of a run agree (the mean of a size)."""
    engines = [engine.get("settings") or {} for engine in record["engines"] or []]
    names = sorted({name for settings in engines for name in settings if name != "versions"} | set(LIMITS))
    settings = {name: _of_all(name, [engine.get(name) for engine in engines]) for name in names}
    return {"engines": len(engines), "cache_state": record["cache_state"], **settings}


def _readers(knob: str) -> tuple[str, ...]:
    return next((strategies for start, strategies in OWN_KNOBS.items() if knob.startswith(start)), ())


def dataset_difference(a: Record, b: Record) -> list[str]:
    """Compares fingerprints; the path that was asked for where a run ended before its fingerprint was taken."""
    first, second = a["dataset"] or {}, b["dataset"] or {}
    if first.get("fingerprint") and second.get("fingerprint"):
        same = first["fingerprint"] == second["fingerprint"]
    else:
        same = a["config"].get("INPUT_PATH") == b["config"].get("INPUT_PATH")
    if not same:
        return [f"dataset: {dataset_name(a)} / {dataset_name(b)}"]
    # Daft's batches do not cross files, so the same rows in other files are other work.
    files = first.get("files") or FILES_BEFORE, second.get("files") or FILES_BEFORE
    return [f"files: {files[0]} / {files[1]}"] if files[0] != files[1] and first and second else []


def dataset_name(record: Record) -> str:
    """Name and fingerprint's beginning; the path's last part where the run ended before it read the data."""
    dataset = record["dataset"] or {}
    if dataset.get("fingerprint"):
        return f"{PurePath(str(dataset.get('name'))).name.removesuffix('.parquet')} ({dataset['fingerprint'][:8]})"
    return PurePath(str(record["config"].get("INPUT_PATH"))).name


def _of_all(name: str, values: list[Any]) -> Any:
    if not values or None in values:
        return None
    if name in MEASURED:
        return sum(values) / len(values)
    return values[0] if all(value == values[0] for value in values) else f"{UNEQUAL} {values}"


def _is_unclear(value: Any) -> bool:
    return value is None or str(value).startswith(UNEQUAL)


def _unequal(a: Facts, b: Facts, names: Sequence[str]) -> list[str]:
    return [f"{name}: {_text(a[name])} / {_text(b[name])}" for name in names if not _equal(name, a[name], b[name])]


def _equal(name: str, a: Any, b: Any) -> bool:
    if name in MEASURED and isinstance(a, int | float) and isinstance(b, int | float):
        return abs(a - b) <= MEASURED_TOLERANCE * max(a, b)
    return bool(a == b)


def _folder_name(model: str) -> str:
    """The same model lies in different folders on different machines; a hub id stays as it is."""
    return PurePath(model).name if PurePath(model).is_absolute() else model


def _known(value: Any) -> str:
    return "not read back" if value is None else _text(value)


def _text(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, float) and value >= 1000 else str(value)
