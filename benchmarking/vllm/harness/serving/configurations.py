"""The server configurations that are compared: a baseline, and one control changed at a time."""

import sys
from dataclasses import dataclass
from typing import Any

import config
from harness.engines import engine_args

MODEL = "model"
# Engine arguments that a control may change, besides the two that are no engine argument under their own name.
ENGINE_CONTROLS = ("max_num_batched_tokens", "max_num_seqs", "kv_cache_memory_bytes", "gpu_memory_utilization")
CHUNKED_PREFILL, ADMISSION_LIMIT = "chunked_prefill", "admission_limit"
CONTROLS = (*ENGINE_CONTROLS, CHUNKED_PREFILL, ADMISSION_LIMIT)
BASELINE = "baseline"


class ConfigurationError(ValueError):
    """A configuration's name cannot be read; the message says what was expected."""


@dataclass(frozen=True)
class Configuration:
    """`name` is "baseline" or "control=value"; `arguments` are the server's, `admission_limit` caps requests inside."""

    name: str
    control: str | None
    value: str | None

    @property
    def admission_limit(self) -> int | None:
        if self.control == ADMISSION_LIMIT:
            return int(self.value or 0)
        return config.SERVING_ADMISSION_LIMIT

    def at_once(self) -> int:
        """Requests that the server takes at a time without queueing or refusing."""
        return min(int(self.engine_arguments()["max_num_seqs"]), self.admission_limit or config.MAX_NUM_SEQS)

    def engine_arguments(self) -> dict[str, Any]:
        args = engine_args()
        # Requests of served traffic say their own output lengths; the scheduler would cut them to the batch's.
        args.pop("scheduler_cls", None)
        if self.control in ENGINE_CONTROLS:
            args[self.control] = self.value
        if self.control == CHUNKED_PREFILL:
            args["enable_chunked_prefill"] = self.value == "on"
        return args

    def command(self, port: int) -> list[str]:
        """`vllm serve` by its module: with the CPU package, the `vllm` command itself fails."""
        options = [_option(name, value) for name, value in self.engine_arguments().items()]
        flags = [text for option in options for text in option]
        gate = ["--middleware", "harness.serving.admission.AdmissionLimit"] if self.admission_limit else []
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", config.MODEL_NAME),
            *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)),
            *("--disable-uvicorn-access-log", "--no-enable-log-requests"),
            *flags,
            *gate,
        ]


def parse(text: str) -> list[Configuration]:
    """Configurations from "baseline,max_num_seqs=128,…". Raises ConfigurationError naming what it cannot read."""
    found = [_one(part.strip()) for part in text.split(",") if part.strip()]
    names = [configuration.name for configuration in found]
    if not found or len(set(names)) < len(names):
        raise ConfigurationError(f"configurations {text!r}: expected different names separated by commas")
    return found


def _one(name: str) -> Configuration:
    if name == BASELINE:
        return Configuration(name, None, None)
    control, _, value = name.partition("=")
    expected = "on or off" if control == CHUNKED_PREFILL else "a number above 0"
    fits = value in ("on", "off") if control == CHUNKED_PREFILL else _is_positive(value)
    if control not in CONTROLS or not fits:
        raise ConfigurationError(
            f"configuration {name!r}: expected {BASELINE} or control=value with one of {', '.join(CONTROLS)}"
            + (f"; {control} takes {expected}" if control in CONTROLS else "")
        )
    return Configuration(name, control, value)


def _is_positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def _option(name: str, value: Any) -> list[str]:
    """A keyword argument of the engine as the server's options; none where it is left to the server."""
    flag = name.replace("_", "-")
    if value is None or (name == "disable_log_stats" and not value):
        return []
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, value)]
    return [f"--{flag}", str(value)]
