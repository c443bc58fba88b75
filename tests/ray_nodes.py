"""A Ray cluster of several nodes on one machine, for tests: each node a raylet of its own, with its own folder, address
and working directory, as they are on several machines. Only the head's driver knows where the suite lies."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import ray

PORT, DASHBOARD_PORT = 6391, 8291
HEAD = str(ray.util.get_node_ip_address())
START_TIMEOUT_S = 120.0


@dataclass
class Node:
    """A raylet and everything it started."""

    address: str
    process: "subprocess.Popen[bytes]"

    def family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            return [process, *process.children(recursive=True)]
        return []

    def kill(self) -> None:
        """As if its power went: every process at once, without a word to anybody."""
        family = self.family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.suspend()  # so that none of them can start another one
        for process in {*family, *self.family()}:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclass
class Nodes:
    """The cluster's nodes, head first, and the environment that they run in."""

    folder: Path
    environ: Mapping[str, str]
    head: Node | None = None
    workers: list[Node] = field(default_factory=list)
    started: list[Node] = field(default_factory=list)

    address = f"{HEAD}:{PORT}"
    dashboard = f"http://{HEAD}:{DASHBOARD_PORT}"

    def start_head(self) -> None:
        options = ["--head", f"--port={PORT}", "--num-gpus=0", "--num-cpus=8", "--include-dashboard=true"]
        self.head = self._start(HEAD, [*options, f"--dashboard-port={DASHBOARD_PORT}"])

    def add_worker(self) -> Node:
        """A node with one logical GPU, which vLLM's CPU engine does not touch."""
        options = [f"--address={self.address}", "--num-gpus=1", "--num-cpus=16"]
        self.workers.append(self._start(f"127.0.0.{len(self.started) + 1}", options))
        return self.workers[-1]

    def take(self, address: str) -> Node:
        """The worker at an address, which no longer counts as one of the cluster's."""
        node = next(node for node in self.workers if node.address == address)
        self.workers.remove(node)
        return node

    def stop(self) -> None:
        for node in reversed(self.started):
            node.kill()

    def _start(self, address: str, options: list[str]) -> Node:
        folder = self.folder / address
        folder.mkdir()
        log = (folder / "start.log").open("wb")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        command += [f"--node-ip-address={address}", f"--temp-dir={folder}", *options]
        process = subprocess.Popen(
            command, cwd=folder, env=dict(self.environ), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        log.close()
        self.started.append(Node(address, process))
        wait_for(lambda: "Ray runtime started" in (folder / "start.log").read_text(), f"a Ray node at {address}")
        return self.started[-1]


@contextmanager
def cluster(workers: int, **environ: str) -> Iterator[Nodes]:
    """A head without GPUs and `workers` nodes with one each; ended, and its folders removed, on leaving."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BENCH_", "RAY_", "PYTHONPATH"))}
    # Ray 2.59 turns tokens on where an earlier local Ray left one in the home folder.
    kept["RAY_AUTH_MODE"] = "disabled"
    # The `python` of a job's entry point is that of its node.
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    # Sockets lie in these folders, and their paths must be shorter than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    nodes = Nodes(folder, {**kept, **environ})
    try:
        nodes.start_head()
        for _ in range(workers):
            nodes.add_worker()
        yield nodes
    finally:
        nodes.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(condition: object, what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"expected {what} within {timeout_s:.0f} s"
        time.sleep(0.2)
