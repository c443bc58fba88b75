"""From committed records to an engine's efficiency, and how well it predicts runs that it was not fitted to.

`results` holds `records.jsonl`, `timeseries/`, and what a reader needs who has neither dataset nor model:
    structures/<fingerprint>-<...>.parquet          which prompts share what (stored_structure.py)
    models/<name>/config.json                       sizes of the models that ran
"""

import json
import math
import statistics
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness.comparison import comparability
from harness.prediction import gpus, model_shape, prompt_set, record_forecast, roofline
from harness.prediction.engine_state import StepCost
from harness.prediction.feeding import Dataset
from harness.prediction.gpus import Gpu
from harness.prediction.model_shape import ModelShape
from harness.prediction.record_forecast import Record
from harness.simulation import fitting, record_run, stored_structure
from harness.simulation.outcome import Outcome
from harness.simulation.step_time import Efficiency

SCHEMA = 1
FILE_NAME = "calibration.json"
_KEPT: dict[tuple[str, Efficiency], list[Any]] = {}


class Start(NamedTuple):
    """From the first engine's loading on: until all are ready, median of the runs; the first's lead over the last, most
    that any run saw."""

    start_s: float
    spread_s: float


class Run(NamedTuple):
    """A record with what its simulation needs."""

    record: Record
    dataset: Dataset
    least: StepCost

    @property
    def plain(self) -> bool:
        """Whether its engines ran without a logits processor, which adds time to each step that is not fitted."""
        return not comparability.conditions(self.record["config"])["LOGITS_PROCESSORS"]


def load(results: Path, datasets: str | None = None, tokenizer: str | None = None) -> list[Run]:
    """All runs that can be simulated. A structure that is missing is made from the dataset below `datasets`.

    Raises ValueError where that is not possible, with what is missing.
    """
    runs = []
    for record in record_forecast.load(results):
        with record_forecast.whole(record):
            if record_run.can_simulate(record):
                runs.append(_run(record, results, datasets, tokenizer))
    return runs


def _run(record: Record, results: Path, datasets: str | None, tokenizer: str | None) -> Run:
    knobs = record_forecast.settings(record)
    path = results / "structures" / _structure_name(record)
    if not path.exists():
        _make_structure(path, record, datasets, tokenizer)
    model = model_shape.read(str(results / "models" / Path(knobs["MODEL_NAME"]).name))
    gpu = gpus.find(record["hardware"]["gpus"][0])
    return Run(
        record,
        stored_structure.read(path, record_run.files(record)),
        roofline.step_cost(model, gpu, knobs["GPUS_PER_ENGINE"]),
    )


def _structure_name(record: Record) -> str:
    """Of what it depends on: the prompts, the size of blocks, and how many tokens each prompt generates."""
    knobs = record_forecast.settings(record)
    lengths = ["OUTPUT_LEN"] if knobs["OUTPUT_LEN_DISTRIBUTION"] == "fixed" else ["OUTPUT_LEN_MIN", "OUTPUT_LEN_MAX"]
    parts = [knobs[name] for name in ("BLOCK_SIZE", "OUTPUT_LEN_DISTRIBUTION", *lengths)]
    return "-".join(map(str, [record["dataset"]["fingerprint"], *parts])) + ".parquet"


def _make_structure(path: Path, record: Record, datasets: str | None, tokenizer: str | None) -> None:
    name = Path(record["dataset"]["name"]).name
    if datasets is None or tokenizer is None:
        raise ValueError(
            f"expected {path.name} in {path.parent}, found none; give --datasets, the folder that holds {name}, and "
            "--model, the folder of its tokenizer, to make it"
        )
    prompts = prompt_set.load(f"{datasets}/{name}", tokenizer, record_forecast.settings(record))
    if prompts.column.fingerprint != record["dataset"]["fingerprint"]:
        wanted = record["dataset"]["fingerprint"]
        raise ValueError(f"{datasets}/{name}: expected fingerprint {wanted}, found {prompts.column.fingerprint}")
    stored_structure.write(path, prompts.data)


def calibrate(runs: list[Run], results: Path, reading: str = "attention", near: Efficiency | None = None) -> Efficiency:
    """The efficiency that fits the plain ones of `runs` best; `near` is that of nearly the same runs.

    Raises ValueError if there is none, if they mix models or GPUs, or if none shows how fast requests arrive.
    """
    runs = [run for run in runs if run.plain]
    if not runs:
        raise ValueError("expected records of GPU runs without a logits processor, found none; nothing can be fitted")
    least = runs[0].least
    if any(run.least != least for run in runs):
        raise ValueError("expected records of one model on one kind of GPU, found several; fit each on its own")
    front_end_s = record_run.front_end_s_a_token([run.record for run in runs], results)
    given = []
    for run in runs:
        with record_forecast.whole(run.record):
            given.append((partial(_traces, run), record_run.measured(run.record)))
    return fitting.fit(given, least, front_end_s, reading, near)


def _traces(run: Run, efficiency: Efficiency) -> list[Any]:
    """Kept, since fits that each leave one run out ask for the same ones."""
    key = (run.record["run_id"], efficiency)
    if key not in _KEPT:
        with record_forecast.whole(run.record):
            _KEPT[key] = record_run.traces(*run, efficiency)
    return _KEPT[key]


def predict(run: Run, efficiency: Efficiency) -> Outcome:
    with record_forecast.whole(run.record):
        return record_run.simulate(*run, efficiency)


def start(runs: list[Run]) -> Start:
    ready = [[engine["timeline_s"]["ready"] for engine in run.record["engines"]] for run in runs]
    loading = [min(engine["timeline_s"]["vllm_imported"] for engine in run.record["engines"]) for run in runs]
    took = [max(times) - began for times, began in zip(ready, loading, strict=True)]
    return Start(statistics.median(took), max(max(times) - min(times) for times in ready))


def as_json(runs: list[Run], readings: dict[str, Efficiency]) -> dict[str, Any]:
    """What calibration.json holds: the fits, how engines started, and the runs that this comes from."""
    runs = [run for run in runs if run.plain]
    first = runs[0].record
    return {
        "schema": SCHEMA,
        "gpu": gpus.find(first["hardware"]["gpus"][0]).name,
        "model": Path(first["config"]["MODEL_NAME"]).name,
        "vllm": sorted({run.record["versions"]["vllm"] for run in runs}),
        "runs": [run.record["run_id"] for run in runs],
        "start": start(runs)._asdict(),
        "readings": {reading: efficiency._asdict() for reading, efficiency in readings.items()},
    }


class Calibration(NamedTuple):
    """calibration.json: the card and model that were measured, how engines start, an efficiency for each reading."""

    gpu: Gpu
    model: ModelShape
    start: Start
    readings: dict[str, Efficiency]
    runs: list[str]  # ids of the records that it was fitted to


def read(results: Path) -> Calibration:
    """The committed fit. Raises ValueError where there is none that can be used, with what to do."""
    path = results / FILE_NAME
    if not path.exists():
        raise ValueError(
            f"expected {path}, found none; calibrate-simulation.py --write makes it from records, and "
            "BENCH_RESULTS_PATH=results takes the committed one"
        )
    try:
        return _calibration(json.loads(path.read_text(encoding="utf-8")), results)
    except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
        found = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{path}: expected what calibrate-simulation.py keeps, found {found}; "
            "calibrate-simulation.py --write makes it anew from records"
        ) from error


def _calibration(kept: dict[str, Any], results: Path) -> Calibration:
    if kept["schema"] != SCHEMA:
        raise ValueError(f"schema {kept['schema']!r}, where {SCHEMA} is known")
    model = model_shape.read(str(results / "models" / kept["model"]))
    readings = {reading: Efficiency(**kept["readings"][reading]) for reading in fitting.READINGS}
    start = Start(**kept["start"])
    for numbers in (start, *readings.values()):
        if not all(isinstance(number, int | float) and 0 <= number < math.inf for number in numbers):
            raise ValueError(f"{numbers}, where every number is finite and at least 0")
    if not all(found.matrix_efficiency and found.kv_efficiency for found in readings.values()):
        raise ValueError("an efficiency of 0")
    return Calibration(gpus.find(kept["gpu"]), model, start, readings, list(kept["runs"]))
