"""LOAD_FORMAT against what the installed vLLM loads; an engine says so only after it was placed and started."""

from collections.abc import Iterator

import config
from harness.preflight.problem import Problem

# Of every vLLM; others are looked up in it, which takes seconds to import.
EVERYWHERE = ("auto", "dummy", "safetensors")


def problems() -> Iterator[Problem]:
    """Nothing where vLLM is not there to be asked, which is a problem of its own, or keeps its list elsewhere."""
    if config.LOAD_FORMAT in EVERYWHERE:
        return
    try:
        known = _known()
    except (ImportError, AttributeError):
        return
    if config.LOAD_FORMAT.lower() not in known:
        yield Problem(f"one of {', '.join(sorted(known))}", repr(config.LOAD_FORMAT), "Set LOAD_FORMAT")


def _known() -> set[str]:
    """Formats of vLLM and of its plugins, which register theirs."""
    from vllm.model_executor import model_loader
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    return {*model_loader._LOAD_FORMAT_TO_MODEL_LOADER}
