"""Files of records: one JSON line each, append-only, safe against kills and against two writers at once.

    for record in record_file.load(config.RESULTS_PATH): ...

Those of runs, and with `append_line` and `load_lines` any other. A kill in the middle of an append can leave half a
line at the end, never harm an earlier one. Half a line is said on stderr when the file is read, and moved to a file of
its own before the next line is appended.
"""

import fcntl
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.schema import SCHEMA, UPGRADES, Record

FILE_NAME = "records.jsonl"


class RecordError(ValueError):
    """A line of a record file cannot be used; the message names file, line and what to do."""


class ResultsError(ValueError):
    """A results folder cannot be used as asked; the message names it and what to do."""


def append(record: Record, results_path: str | Path) -> Path:
    """Appends the record of a run and returns the file."""
    path = Path(results_path) / FILE_NAME
    append_line(record, path)
    return path


def append_line(record: Mapping[str, Any], path: Path) -> None:
    """Appends one record as one line; on return it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(record, allow_nan=False) + "\n").encode()
    with _locked(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as file:
        _set_aside(path, file)
        while line:
            line = line[os.write(file, line) :]
        os.fsync(file)


def load(results_path: str | Path) -> list[Record]:
    """All records of a results folder, oldest first, in today's format; none where there is no file.

    Raises RecordError for every line that is not a record or has an unknown version, ResultsError for what is no file.
    """
    return load_lines(Path(results_path) / FILE_NAME, parse)


def load_lines(path: Path, parse: Callable[[bytes, str], Record]) -> list[Record]:
    """All lines of a file by `parse`, which gets each and where it is from; none where there is no file.

    Raises RecordError with all that `parse` raised. Half a line at the end, left by a kill, is said and skipped.
    """
    if not path.exists():
        return []
    if not path.is_file():
        raise ResultsError(f"expected records in {path}, found a folder or a pipe. Move it away, or set RESULTS_PATH")
    with _locked(path, os.O_RDONLY, fcntl.LOCK_SH) as file:
        text = _read(file)
    whole, tail = _split(text)
    if tail:
        print(f"warning: {path} ends in half a line ({len(tail)} bytes), skipped; {_NEXT_APPEND}", file=sys.stderr)
    records, wrong = [], []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            records.append(parse(line, f"{path}:{number}"))
        except RecordError as error:
            wrong.append(str(error))
    if wrong:
        raise RecordError("\n".join(wrong))
    return records


def repeated(names: Iterable[str]) -> list[tuple[str, int]]:
    """The ids that several lines have, and how many; a run counted twice makes a comparison look surer than it is."""
    return [(name, count) for name, count in Counter(names).items() if count > 1]


def required(records: Sequence[Record], path: Path, change: str) -> None:
    """Raises ResultsError where a results folder holds none: its name may be mistyped."""
    if not records:
        found = "an empty file" if path.exists() else "no such file" if path.parent.is_dir() else "no such folder"
        raise ResultsError(f"expected records in {path}, found {found}. {change}")


def set_aside_half_line(results_path: str | Path) -> Path | None:
    """Moves half a line that a kill left at the end of the file into a file of its own; returns that one."""
    path = Path(results_path) / FILE_NAME
    if not path.exists():
        return None
    with _locked(path, os.O_RDWR | os.O_APPEND, fcntl.LOCK_EX) as file:
        return _set_aside(path, file)


_NEXT_APPEND = "the next one that is recorded moves it to a file of its own"


def _set_aside(path: Path, file: int) -> Path | None:
    whole, tail = _split(_read(file))
    if not tail:
        if whole and not whole.endswith(b"\n"):
            os.write(file, b"\n")
        return None
    # Named after its content: a kill between the two steps makes the same file again, not a second one.
    aside = path.with_name(f"{path.stem}.half-{hashlib.sha256(tail).hexdigest()[:8]}.txt")
    aside.write_bytes(tail)
    os.ftruncate(file, len(whole))
    print(f"warning: {path} ended in half a line, left by a killed run; moved to {aside}", file=sys.stderr)
    return aside


def _split(content: bytes) -> tuple[bytes, bytes]:
    """Whole lines, and what follows them. A last line that only lacks its line end is whole."""
    end = content.rfind(b"\n") + 1
    tail = content[end:]
    try:
        return (content, b"") if isinstance(json.loads(tail), dict) else (content[:end], tail)
    except ValueError:
        return content[:end], tail


def parse(line: bytes, where: str) -> Record:
    """One record in today's format; `where` it is from, for the RecordError that says it is none."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{where}: not JSON ({error}). Move this line to another file, or restore it") from error
    if not isinstance(record, dict):
        raise RecordError(f"{where}: expected a record (a JSON object), found {type(record).__name__}")
    return _upgraded(record, where)


def _upgraded(record: Record, where: str) -> Record:
    version = record.get("schema")
    known = (*UPGRADES, SCHEMA)
    if type(version) is not int or version not in known:
        raise RecordError(
            f"{where}: schema {version!r} is unknown here; this suite reads {sorted(known)}. "
            "Use the suite that wrote the record, or a newer one"
        )
    while version != SCHEMA:
        record = {**UPGRADES[version](record), "schema": version + 1}
        version += 1
    return record


@contextmanager
def _locked(path: Path, flags: int, lock: int) -> Iterator[int]:
    file = os.open(path, flags, 0o644)
    try:
        fcntl.flock(file, lock)
        yield file
    finally:
        os.close(file)


def _read(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)
