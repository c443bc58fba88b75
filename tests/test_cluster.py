"""How a run joins Ray."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from harness import cluster
from harness.overrides import SUITE_DIR


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_is_gone_is_named_within_seconds(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    started = time.monotonic()
    with pytest.raises(ConnectionError, match=f"no Ray cluster answers at {address}.*RAY_ADDRESS=local") as caught:
        cluster.connect()
    assert caught.value.__cause__ is None  # what a record names is the innermost error
    assert time.monotonic() - started < 10


def test_the_address_for_jobs_is_refused_with_the_command_that_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    with pytest.raises(ConnectionError, match=r"expected RAY_ADDRESS as host:port, found http://.*`ray job submit`"):
        cluster.connect()


@pytest.mark.cluster
def test_a_script_joins_the_cluster_of_its_head_node_also_where_that_asks_for_a_token(tmp_path: Path) -> None:
    """As on a head node where a local Ray ran before: it left a token, and `ray start` then asks for one."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environ = {**mine, "HOME": str(tmp_path), "RAY_TMPDIR": folder, "BENCH_PROFILE": "local-cpu"}
        command = [sys.executable, "-m", "ray.scripts.scripts"]
        subprocess.run([*command, "get-auth-token", "--generate"], env=environ, check=True, capture_output=True)
        start = [*command, "start", "--head", "--port=0", "--num-gpus=3", "--include-dashboard=false"]
        done = subprocess.run(start, env=environ, capture_output=True, text=True)
        try:
            assert done.returncode == 0, done.stdout + done.stderr
            assert "authentication is enabled" in done.stdout + done.stderr
            join = "from harness import cluster; print(cluster.connect(), *cluster.gpus(), *cluster.free_gpus())"
            joined = subprocess.run(
                [sys.executable, "-c", join], cwd=SUITE_DIR, env=environ, capture_output=True, text=True
            )
        finally:
            stop_ray(folder)
    assert joined.stdout.split() == ["False", "3.0", "3.0"], joined.stderr


def stop_ray(folder: str) -> None:
    """Ends the processes of the Ray in a folder; `ray stop` would end everybody's."""
    import psutil

    ours = [process for process in psutil.process_iter() if folder in " ".join(process.cmdline())]
    family = [child for process in ours for child in process.children(recursive=True)]
    for process in {*ours, *family}:
        process.kill()
    psutil.wait_procs({*ours, *family}, timeout=10)
