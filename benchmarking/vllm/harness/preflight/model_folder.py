"""The model as engines will look for it: config.json, tokenizer and weights, in a folder or in the hub's cache."""

from pathlib import Path
from typing import Any, NamedTuple

import config
from harness.preflight import endpoint
from harness.preflight.deadline import within
from harness.preflight.problem import Problem

LOAD_TIMEOUT_S = 20.0  # for a hub that answers slowly
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


class Model(NamedTuple):
    """transformers' config and tokenizer; None where they could not be loaded."""

    config: Any
    tokenizer: Any


def load(weights: bool = True) -> tuple[Model, list[Problem]]:
    """Loads config.MODEL_NAME's config and tokenizer, as vLLM does, or says what is missing; `weights` must be there
    where an engine of ours is to read them."""
    folder = Path(config.MODEL_NAME)
    try:
        found = _missing_files(folder, weights) if folder.is_absolute() or folder.is_dir() else _missing_hub()
        if found:
            change = "Set MODEL_NAME to a hub id or a folder with the model"
            return Model(None, None), [Problem(f"the model {config.MODEL_NAME}", found, change)]
        # Not within the hub's time: on a busy machine, or from a cold disk, it takes longer.
        from transformers import AutoConfig, AutoTokenizer

        name = config.MODEL_NAME
        loaded = within(LOAD_TIMEOUT_S, lambda: (AutoConfig.from_pretrained(name), AutoTokenizer.from_pretrained(name)))
        return Model(*loaded), []
    except (OSError, ValueError, KeyError) as error:  # also of a name that is neither a hub id nor a folder
        expected = f"a config and a tokenizer that transformers loads from {config.MODEL_NAME}"
        return Model(None, None), [Problem(expected, str(error), "Set MODEL_NAME, or complete its folder")]


def _missing_files(folder: Path, weights: bool) -> str | None:
    if not folder.is_dir():
        return "no such folder"
    if not (folder / "config.json").is_file():
        return "a folder without config.json"
    if weights and config.LOAD_FORMAT != "dummy" and not any(list(folder.glob(pattern)) for pattern in WEIGHTS):
        return 'a folder without weights (LOAD_FORMAT "dummy" would draw random ones)'
    return None


def _missing_hub() -> str | None:
    """Offline, a hub id must be in the cache of this machine, and of each machine that an engine runs on."""
    from huggingface_hub import constants, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE:
        silence = endpoint.silence(constants.ENDPOINT, through_proxy=True)
        return (
            f"no hub at {constants.ENDPOINT} ({silence}); HF_HUB_OFFLINE=1 takes it from the cache" if silence else None
        )
    if isinstance(try_to_load_from_cache(config.MODEL_NAME, "config.json"), str):
        return None
    return f"nothing of it in the hub's cache ({constants.HF_HUB_CACHE}) while HF_HUB_OFFLINE is set"
