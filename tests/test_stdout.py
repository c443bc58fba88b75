"""Scripts whose stdout takes no more: one line that says so, and a non-zero exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.overrides import REFUSED, SUITE_DIR

PRINTING = """
import sys
from harness import stdout

def main():
    try:
        print("much")
        {ending}
    except OSError:
        sys.exit("taken for trouble with a file")

stdout.exit_after(main)
"""
ENDINGS = {"return": ("return 0", 0), "one": ("return 1", 1), "sys.exit": ("sys.exit(1)", 1)}


def ended(stdout: int, unbuffered: str, ending: str = "return 0") -> tuple[int, str]:
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-c", PRINTING.format(ending=ending)]
    done = subprocess.run(command, cwd=SUITE_DIR, env=environ, stdout=stdout, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_and_a_reader_that_has_gone_end_a_script_in_one_line(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        code, said = ended(full.fileno(), unbuffered)
    assert code == REFUSED
    assert said.startswith("refused: [Errno 28] No space left on device: stdout takes no more.")
    reading, writing = os.pipe()
    os.close(reading)
    code, gone = ended(writing, unbuffered)
    os.close(writing)
    assert code == REFUSED
    assert gone.startswith("refused: [Errno 32] Broken pipe: stdout takes no more.")
    assert (said.count("\n"), gone.count("\n")) == (1, 1)


def test_a_stderr_that_takes_no_more_changes_no_ending() -> None:
    code = PRINTING.format(ending="sys.stderr.write('said'); return 0")
    for stdout, expected in (("/dev/null", 0), ("/dev/full", REFUSED)):
        with Path("/dev/full").open("w") as full, Path(stdout).open("w") as out:
            assert (
                subprocess.run([sys.executable, "-c", code], cwd=SUITE_DIR, stdout=out, stderr=full).returncode
                == expected
            )


@pytest.mark.parametrize("ending", ENDINGS)
def test_where_all_is_printed_a_script_ends_as_its_main_does(ending: str) -> None:
    statement, expected = ENDINGS[ending]
    assert ended(subprocess.DEVNULL, "", statement) == (expected, "")


def test_every_script_that_prints_ends_this_way() -> None:
    scripts = [file.read_text() for file in SUITE_DIR.glob("*.py") if "__main__" in file.read_text()]
    assert all("    stdout.exit_after(main)\n" in text or "    run(__file__, " in text for text in scripts)
    assert len(scripts) > 15
