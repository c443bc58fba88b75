"""A vLLM server for one configuration: started, awaited and ended with everything that it started."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import config
from harness import quiet
from harness.overrides import SUITE_DIR
from harness.serving import priority
from harness.serving.admission import LIMIT_VARIABLE
from harness.serving.configurations import MODEL, Configuration
from harness.serving.connection import Endpoint
from harness.serving.http_call import call
from harness.serving.server_metrics import parse

POLL_S = 0.25
PR_SET_PDEATHSIG = 1  # linux/prctl.h
STOP_S = 15.0
TAIL_LINES = 15
READ_BACK = {
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "max_model_len": ("model_config", "max_model_len"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "block_size": ("cache_config", "block_size"),
    "num_gpu_blocks": ("cache_config", "num_gpu_blocks"),
    "prefix_caching": ("cache_config", "enable_prefix_caching"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
}


class ServerError(RuntimeError):
    """The server did not come up or went away; the message ends with its log's last lines."""


@dataclass(frozen=True)
class Server:
    """`process` is null for a server that somebody else runs."""

    endpoint: Endpoint
    model: str
    command: list[str] | None = None
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    def why_gone(self) -> str | None:
        """Exit code and log of a server of ours that ended; None while it lives."""
        code = self.process.poll() if self.process else None
        return None if code is None else f"the server ended with exit code {code}:\n{tail(self.log)}"


@contextlib.contextmanager
def running(configuration: Configuration, log: Path, timeout_s: float) -> Iterator[Server]:
    """A healthy server, ended when the block is left. Raises ServerError where it is not healthy in time."""
    port = free_port()
    command = configuration.command(port)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            priority.lowered(command),
            env=environment(configuration),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    server = Server(Endpoint(f"http://127.0.0.1:{port}"), MODEL, command, process, log)
    try:
        await_health(server, timeout_s)
        yield server
    finally:
        stop(process)


def existing(url: str) -> Server:
    """A server that runs already. Raises ServerError unless it names its model."""
    endpoint = Endpoint(url)
    answer = call(endpoint, "GET", "/v1/models")
    try:
        model = str(json.loads(answer.text)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise ServerError(
            f"{url}: expected an OpenAI-compatible server that lists its model at /v1/models, found "
            f"{answer.status or 'no answer'} ({answer.text[:200]}). Start it, or correct --url."
        ) from None
    return Server(endpoint, model)


def await_health(server: Server, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if gone := server.why_gone():
            raise ServerError(gone)
        if call(server.endpoint, "GET", "/health").is_ok:
            return
        time.sleep(POLL_S)
    raise ServerError(
        f"the server was not healthy after {timeout_s:g} s (WATCHDOG_START_S); its log ends with:\n{tail(server.log)}"
    )


def environment(configuration: Configuration) -> dict[str, str]:
    """The server's: its log on, /reset_prefix_cache on, the suite's middleware and logits processors importable."""
    found = {**os.environ, **quiet.WORKERS_ONLY, "VLLM_SERVER_DEV_MODE": "1"}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SUITE_DIR), os.environ.get("PYTHONPATH")]))
    if configuration.admission_limit:
        found[LIMIT_VARIABLE] = str(configuration.admission_limit)
    return found


def end_with_parent() -> None:
    """In the child, before the server: SIGTERM once the scorecard is gone, also killed or with its terminal, so that no
    server is left on its GPU."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends the server and all of its process group: asks first, kills after STOP_S."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S if number == signal.SIGTERM else None)


def settings(server: Server) -> dict[str, Any]:
    """What the server's engine runs with, as it says itself; null where it does not."""
    answer = call(server.endpoint, "GET", "/server_info?config_format=json")
    try:
        said = json.loads(answer.text)["vllm_config"] if answer.is_ok else {}
    except (ValueError, KeyError):
        said = {}
    said = said if isinstance(said, dict) else {}
    found = {name: (said.get(part) or {}).get(key) for name, (part, key) in READ_BACK.items()}
    info = parse(call(server.endpoint, "GET", "/metrics").text).cache_info()
    for name in ("block_size", "num_gpu_blocks"):
        if found[name] is None and info.get(name, "").isdigit():
            found[name] = int(info[name])
    return found


def start_timeout_s() -> float:
    return config.WATCHDOG_START_S


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def tail(log: Path | None) -> str:
    lines = log.read_text(errors="replace").splitlines() if log and log.exists() else []
    telling = [line for line in lines if "Error" in line or "error:" in line][-3:]
    return "\n".join([*telling, "…", *lines[-TAIL_LINES:]] if telling else lines[-TAIL_LINES:])
