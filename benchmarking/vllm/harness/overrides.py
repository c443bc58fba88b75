"""Typed overrides of `config.py` from the environment and from profiles.

    BENCH_MAX_NUM_SEQS=64 BENCH_PROFILE=local-cpu python benchmarking/vllm/naive-batch.py

A knob is an annotated upper-case name of the config module; its annotation says how text is parsed.
"""

import difflib
import json
import math
import os
import sys
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PREFIX = "BENCH_"
REFUSED = 3  # exit code, as of a run that preflight refuses
PROFILE_VARIABLE = PREFIX + "PROFILE"
SUITE_DIR = Path(__file__).resolve().parents[1]
LOCAL_PATHS = ("MODEL_NAME", "INPUT_PATH", "DATASETS_PATH", "RESULTS_PATH", "OUTPUT_PATH")
WRITTEN_PATHS = ("DATASETS_PATH", "RESULTS_PATH", "OUTPUT_PATH")
# How the names of knobs begin that no strategy's run reads: the datasets' generator's, and live traffic's.
NOT_OF_RUNS = ("DATASET_", "SERVING_")


class ConfigError(ValueError):
    """A knob has a name or a value that cannot be used; the message says what was expected."""


def apply(config: dict[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Overrides the knobs in `config`, a module's globals: profile first, then single variables.

    Raises ConfigError for an unknown name, an unreadable value, a missing profile, or a value in the file itself that
    is not of its knob's type.
    """
    knobs = knob_types(config)
    if bare := [name for name in config if name.isupper() and name not in knobs]:
        example = f"{bare[0]}: {type(config[bare[0]]).__name__} = {config[bare[0]]!r}"
        raise ConfigError(f"{bare[0]} in config.py: expected its type, as in {example}, found none")
    for name, value in _profile(environ, knobs).items():
        config[name] = value
    for variable, text in environ.items():
        if variable.startswith(PREFIX) and variable != PROFILE_VARIABLE:
            name = variable.removeprefix(PREFIX)
            config[name] = parse(variable, text, _known(variable, name, knobs))
    for name, hint in knobs.items():
        value = config.get(name)
        if not isinstance(value, dict) and not _is_of_type(value, hint):  # what follows from knobs is no knob
            raise ConfigError(f"{name} = {value!r} in config.py: expected {_expectation(hint)}")
    for name in LOCAL_PATHS:
        if config[name] is not None and not config[name].strip():
            # Taken for a relative path, it would be the suite's own folder.
            raise ConfigError(f"{name} {config[name]!r}: expected a path or a name. Set {PREFIX}{name}, or unset it")
        config[name] = absolute(config[name], written=name in WRITTEN_PATHS)


def apply_or_exit(config: dict[str, Any]) -> None:
    """`apply`; a bad override ends the process with one line and the exit code of a refused run."""
    try:
        apply(config)
    except ConfigError as error:
        refuse(error)


def refuse(error: Exception) -> typing.NoReturn:
    """Ends the process as a refused run ends: what is wrong on stderr, and the exit code."""
    print(f"refused: {error}", file=sys.stderr)
    sys.exit(REFUSED)


def knob_types(config: Mapping[str, Any]) -> dict[str, Any]:
    """Name → annotated type of every knob in a module's globals."""
    return {name: hint for name, hint in config["__annotations__"].items() if name.isupper()}


def knob_values(config: types.ModuleType) -> dict[str, Any]:
    """Name → value in force of every knob, for records."""
    return {name: getattr(config, name) for name in knob_types(vars(config)) if hasattr(config, name)}


def as_environment(config: types.ModuleType) -> dict[str, str]:
    """The variables that give another process, on any node, exactly this configuration."""
    return {PREFIX + name: "none" if value is None else str(value) for name, value in _knobs_only(config).items()}


def _knobs_only(config: types.ModuleType) -> dict[str, Any]:
    values = knob_values(config)
    return {name: value for name, value in values.items() if not isinstance(value, dict)}


def parse(variable: str, text: str, hint: Any) -> Any:
    """`text` as a value of type `hint` (str, int, float, bool, or one of them | None)."""
    options = typing.get_args(hint) or (hint,)
    if text.lower() == "none" and types.NoneType in options:
        return None
    kind = next(option for option in options if option is not types.NoneType)
    try:
        return _PARSERS[kind](text)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{variable}={text!r}: expected {_expectation(hint)}") from error


def _is_of_type(value: Any, hint: Any) -> bool:
    """Whether a value that is written in the file could also have come from a variable."""
    options = typing.get_args(hint) or (hint,)
    if value is None or isinstance(value, bool):
        return type(value) in options
    kinds = (float, int) if float in options else options
    try:
        return type(value) in kinds and _PARSERS[type(value)](str(value)) == value
    except ValueError:
        return False


def absolute(path: str | None, written: bool = False) -> str | None:
    """A relative folder beside config.py as an absolute path, if it exists or is to be `written`; or else one that
    exists below the working directory, which workers do not share; hub ids and URLs as they are. A leading ~ is the
    home folder."""
    if path is not None and path.startswith("~/"):
        return str(Path(path).expanduser())
    if path is None or "://" in path or Path(path).is_absolute():
        return path
    local, here = SUITE_DIR / path, Path.cwd() / path
    if written or local.exists():
        return str(local.resolve())
    if here.exists():
        return str(here.resolve())
    return str(local.resolve()) if path.startswith(".") else path


def _profile(environ: Mapping[str, str], knobs: Mapping[str, Any]) -> dict[str, Any]:
    name = environ.get(PROFILE_VARIABLE)
    if not name:
        return {}
    known = {file.stem: file for file in (SUITE_DIR / "profiles").glob("*.toml") if file.is_file()}
    if name not in known:
        raise ConfigError(f"{PROFILE_VARIABLE}={name!r}: expected one of {sorted(known)}")
    path = known[name]
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"profiles/{path.name}: expected TOML, found: {error}. Mend it, or name another") from None
    return {key: parse(f"{path.name}: {key}", str(value), _known(key, key, knobs)) for key, value in values.items()}


def _known(variable: str, name: str, knobs: Mapping[str, Any]) -> Any:
    if name not in knobs:
        close = difflib.get_close_matches(name, knobs, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "its knobs are the upper-case names there"
        raise ConfigError(f"{variable}: no knob {name} in config.py; {hint}")
    return knobs[name]


def _bool(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _finite(text: str) -> float:
    """No NaN or infinity, which JSON, and so a record, cannot hold."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _whole(text: str) -> int:
    """No more than Arrow and the engines can count."""
    if abs(number := int(text)) >= 2**63:
        raise ValueError(text)
    return number


def _text(text: str) -> str:
    """No bytes that are not UTF-8, which records and Ray's messages cannot hold; no zero, which no path can."""
    if "\0" in text:
        raise ValueError(text)
    text.encode()
    return text


_PARSERS: dict[Any, Any] = {str: _text, int: _whole, float: _finite, bool: _bool}


def _expectation(hint: Any) -> str:
    options = typing.get_args(hint) or (hint,)
    numbers = {int: "a whole number below 2^63", float: "a finite number"}
    names = {str: "text", **numbers, bool: "true or false", types.NoneType: "none"}
    return " or ".join(names[option] for option in options)


if __name__ == "__main__":
    import config as _config
    from harness import stdout

    stdout.exit_after(lambda: print(json.dumps(knob_values(_config), indent=2)))
