"""Room for what a run writes: its record, and what Ray spills of the dataset."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import config
from harness import overrides, record_file, remote_records
from harness.data import storage
from harness.preflight.problem import Problem

RECORD_BYTES = 100_000_000  # a record and its time series, with a margin
# Ray keeps rows in shared memory and spills to disk when that is full: prompts, and rows with outputs beside them.
SPILLED_COPIES = 2
# From 95 % full on, Ray refuses to spill.
RAY_DISK_SHARE = 0.95


def problems(prompt_bytes: int) -> Iterator[Problem]:
    spill = Path(os.environ.get("RAY_TMPDIR", "/tmp"))
    yield from results()
    if config.OUTPUT_PATH is not None:
        yield from _among_prompts(config.OUTPUT_PATH) or _unwritable(config.OUTPUT_PATH, "answers", "OUTPUT_PATH")
    yield from _too_full(spill, SPILLED_COPIES * prompt_bytes, RAY_DISK_SHARE, "Free some, or set RAY_TMPDIR")


def results() -> Iterator[Problem]:
    """Where records go: can they be written, and is there room for one?"""
    if remote_records.is_remote(config.RESULTS_PATH):
        yield from _unwritable(config.RESULTS_PATH, "records", "RESULTS_PATH")
        return
    folder = Path(config.RESULTS_PATH)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield unwritable_folder(folder, error)
        return
    yield from _in_the_way(folder)
    yield from _too_full(folder, RECORD_BYTES, 1.0, "Free some, or set RESULTS_PATH")


def require_results() -> None:
    """Ends a script that measures as a refused run ends where its line could not be kept: known before, not after."""
    if wrong := list(results()):
        overrides.refuse(ValueError("; ".join(map(str, wrong))))


def _in_the_way(folder: Path) -> Iterator[Problem]:
    """What has the name of something that runs and comparisons write, and is no such thing or not theirs to change."""
    kinds = {record_file.FILE_NAME: Path.is_file, "timeseries": Path.is_dir, "logs": Path.is_dir}
    for name, fits in kinds.items():
        path = folder / name
        if path.exists() and not (fits(path) and os.access(path, os.W_OK)):
            expected = f"a {'file' if fits is Path.is_file else 'folder'} {name} in RESULTS_PATH that can be written"
            yield Problem(expected, f"another kind, or no right to write, at {path}", "Move it, or set RESULTS_PATH")


def unwritable_folder(folder: Path, error: OSError) -> Problem:
    return Problem("a folder for records that can be written", f"{folder}: {error.strerror}", "Set RESULTS_PATH")


def _among_prompts(url: str) -> list[Problem]:
    """Answers in the dataset's folder are files of the dataset for whoever reads it next."""
    answers, prompts = (path if "://" in path else str(Path(path).resolve()) for path in (url, config.INPUT_PATH))
    if not f"{answers.rstrip('/')}/".startswith(f"{prompts.rstrip('/')}/"):
        return []
    return [Problem("OUTPUT_PATH outside the dataset's folder (INPUT_PATH)", url, "Set OUTPUT_PATH to another folder")]


def _unwritable(url: str, what: str, setting: str) -> Iterator[Problem]:
    """Written after the last token, when it is late to learn that it cannot be."""
    try:
        files, folder = storage.filesystem(url)
        files.create_dir(folder)
        trial = f"{folder}/.writable-{uuid.uuid4().hex}"
        with files.open_output_stream(trial):
            pass
        files.delete_file(trial)
    except (OSError, storage.StorageError) as error:
        yield Problem(f"a folder for {what} that can be written", f"{url}: {error}", f"Set {setting}")


def _too_full(folder: Path, needed: int, usable: float, change: str) -> Iterator[Problem]:
    disk = shutil.disk_usage(folder)
    free = max(0, disk.free - int((1 - usable) * disk.total))
    if free < needed:
        yield Problem(f"{needed / 1e6:,.0f} MB free for {folder}", f"{free / 1e6:,.0f} MB usable", change)
