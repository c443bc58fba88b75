"""The README's commands and tables are code: the commands run, the strategies' rows are the scripts' own words."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "benchmarking" / "vllm"
READMES = (ROOT / "README.md", SUITE / "README.md")
STRATEGIES = sorted(path for path in SUITE.glob("*.py") if "run(__file__" in path.read_text())
# Run by other tests, by the make targets' own set-up, or by this very test run.
SEEN_ELSEWHERE = (
    ". .venv/bin/activate",
    "make test",
    "make bench",  # test_strategies.py
    "pip install -r benchmarking/vllm/requirements.txt",
    "python benchmarking/vllm/naive-batch.py",  # run here with the local profile
)


def commands() -> list[str]:
    """Every line of every fenced block without a language, less its comment."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    blocks = [block for readme in READMES for language, block in fence.findall(readme.read_text()) if not language]
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return sorted({line for line in lines if line and line not in SEEN_ELSEWHERE})


@pytest.mark.parametrize("command", commands())
def test_a_command_in_a_readme_runs_as_written(command: str, tmp_path: Path, local_set_up: dict[str, str]) -> None:
    environment = {**local_set_up, "BENCH_OUTPUT_PATH": str(tmp_path)}
    done = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def local_set_up() -> dict[str, str]:
    """The environment in which `python` is this one, on the local profile with a short output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "BENCH_PROFILE": "local-cpu", "BENCH_OUTPUT_LEN": "4"}


@pytest.mark.parametrize("script", STRATEGIES, ids=lambda script: script.stem)
def test_a_strategys_row_is_the_first_line_of_its_docstring(script: Path) -> None:
    docstring = ast.get_docstring(ast.parse(script.read_text()))
    assert docstring is not None
    assert f"| `{script.name}` | {docstring.splitlines()[0]} |" in (SUITE / "README.md").read_text()


def test_the_map_names_every_module_and_package_of_the_harness() -> None:
    named = (SUITE / "README.md").read_text().partition("## Where things are")[2]
    modules = {path.name for path in (SUITE / "harness").glob("*.py")} - {"__init__.py"}
    packages = {f"{path.parent.name}/" for path in (SUITE / "harness").glob("*/__init__.py")}
    assert {name for name in modules | packages if f"`{name}`" not in named} == set()


@pytest.mark.parametrize("script", STRATEGIES, ids=lambda script: script.stem)
def test_a_strategy_script_only_defines_and_hands_over(script: Path) -> None:
    """Nothing happens at import: no timing, printing or running outside the function and the last line."""
    *body, last = ast.parse(script.read_text()).body
    assert all(isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef) for node in body[1:])
    assert isinstance(last, ast.If)
    assert ast.unparse(last).startswith("if __name__ == '__main__':\n    run(__file__, ")


def test_links_in_the_readmes_lead_somewhere() -> None:
    for readme in READMES:
        for target in re.findall(r"\]\(([^)#:]+)\)", readme.read_text()):
            assert (readme.parent / target).exists(), f"{readme.name}: {target}"
