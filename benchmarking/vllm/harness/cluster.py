"""Connects a script to Ray: the cluster it sits on, or a local one of its own.

RAY_ADDRESS, or the cluster of the head node the script runs on, wins; otherwise Ray is started here and stopped at
the end. Workers get this folder's code, the driver's configuration and the engine probe through the runtime
environment, so they need the pinned packages but not the repository.
"""

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import config
from harness import overrides, quiet
from harness.data import storage

FORWARDED = ("HF_HUB_OFFLINE", "HF_HOME", "VLLM_CPU_KVCACHE_SPACE")
# Stopping Ray takes seconds; where it hangs, its processes are killed instead.
STOP_TIMEOUT_S = 20.0
# What has nothing left to do (Ray's agents, an engine's core) is given so long to end by itself.
LINGER_S = 0.3
CONNECT_TIMEOUT_S = 5.0


class NoClusterError(ConnectionError):
    """RAY_ADDRESS leads to no Ray; the message says what to do."""


def connect() -> bool:
    """Connects to Ray; returns whether a local one was started for this run. Raises NoClusterError."""
    import ray

    # A job's own runtime environment gives way to ours where both name something, instead of refusing the run.
    os.environ.setdefault("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1")
    options: dict[str, Any] = {
        "runtime_env": _runtime_env(),
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    address = _address()
    if address == "local":
        ray.init(address="local", num_cpus=config.RAY_NUM_CPUS, include_dashboard=False, **options)
    else:
        _join(address, options)
    _configure_engines()
    return address == "local"


def in_a_job() -> bool:
    """Whether this driver was started by `ray job submit`, on a copy of the suite that goes with its node."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def gpus() -> list[float]:
    """GPUs of each node of the connected cluster."""
    import ray

    return [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]]


def cpus() -> list[float]:
    """Logical CPUs of each node of the connected cluster."""
    import ray

    return [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]


def free_gpus() -> list[float]:
    """Those of each node that no actor, task or placement group holds."""
    from ray._private.state import available_resources_per_node

    return [resources.get("GPU", 0) for resources in available_resources_per_node().values()]


def this_node() -> str:
    """The name of this node in the engines' messages."""
    import ray

    return str(ray.util.get_node_ip_address())


def disconnect(started_here: bool, pids: Iterable[int]) -> None:
    """Leaves Ray (stops it, if it was started here) and ends what is left of the engines' processes on this node."""
    import psutil
    import ray

    ours = [process for pid in pids if (process := _process(pid))]
    family = psutil.Process().children(recursive=True) if started_here else []
    stopper = threading.Thread(target=ray.shutdown, daemon=True)
    stopper.start()
    stopper.join(STOP_TIMEOUT_S)
    _, left = psutil.wait_procs({*ours, *family}, timeout=LINGER_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def _process(pid: int) -> Any:
    import psutil

    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def _address() -> str:
    """RAY_ADDRESS, "auto" for the cluster that `ray start` left on this node, or "local"."""
    # Alone, "auto" would also join a stranger's local Ray that it finds among the processes. An explicit address would
    # not do: with it, Ray 2.59 leaves out the token that `ray start` uses once a local Ray has written one.
    from ray._private.services import find_bootstrap_address

    return os.environ.get("RAY_ADDRESS") or ("auto" if find_bootstrap_address(None) else "local")


def _join(address: str, options: dict[str, Any]) -> None:
    import ray
    from ray._private.services import find_bootstrap_address

    if address.startswith("http"):
        raise NoClusterError(
            f"expected RAY_ADDRESS as host:port, found {address}, which is the address for `ray job submit`. Run the "
            "script on the cluster's head node, or hand it over with that command (README, On a cluster)"
        )
    if address != "auto" and not re.fullmatch(r"\S+://\S+|\S+:\d+", address):
        raise NoClusterError(
            f"expected RAY_ADDRESS as host:port, found {address!r}. Correct it, or set RAY_ADDRESS=local to run on "
            "this machine alone"
        )
    try:
        _knock(find_bootstrap_address(None) or address if address == "auto" else address)
        ray.init(address=address, **options)
    except OSError as error:
        raise NoClusterError(
            f"no Ray cluster answers at {address} ({error}). Start one, point RAY_ADDRESS at it, or set "
            "RAY_ADDRESS=local to run on this machine alone"
        ) from None  # A record names the innermost error, which must be this one.


def _knock(address: str) -> None:
    """Raises OSError where nobody listens at host:port; ray.init would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()


def _runtime_env() -> dict[str, Any]:
    forwarded = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    return {
        "working_dir": str(overrides.SUITE_DIR),
        "excludes": ["results/", "*.ipynb", "*.md", "__pycache__/"],
        "env_vars": {**quiet.EVERYWHERE, **quiet.WORKERS_ONLY, **forwarded, **overrides.as_environment(config)},
        "worker_process_setup_hook": "harness.engine_probe.start",
    }


def _configure_engines() -> None:
    import daft
    import ray.data

    daft.set_runner_ray()
    daft.set_planning_config(default_io_config=storage.daft_io_config())
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    quiet.silence_ray_loggers()
