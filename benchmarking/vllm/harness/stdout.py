"""How a script that prints comes to its end, also where stdout or stderr take no more: a full disk, a gone reader.

    if __name__ == "__main__":
        stdout.exit_after(main)

Left alone, Python ends such a script in a traceback, or with exit code 120 when the rest is printed at the very end.
What is said on stderr is no result: a script goes on without it.
"""

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from typing import Any, NoReturn, TextIO

from harness.overrides import REFUSED


class StdoutError(Exception):
    """No OSError: scripts take those for trouble with their files."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"refused: {error}: stdout takes no more. Send it where there is room, to a reader that stays")


def exit_after(main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with what `main` returns, or with one line and the exit code of a refusal."""
    sys.stderr = unfailing(sys.stderr)
    code: int | str | None = None
    try:
        with redirect_stdout(_Checked(sys.stdout)) as checked:
            try:
                code = main()
            except SystemExit as left:
                code = left.code
            checked.flush()
    except StdoutError as error:
        print(error, file=sys.stderr)
        # What could not be printed is tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = code or REFUSED
    sys.exit(code)


def unfailing(stderr: TextIO | None) -> Any:
    """A stderr that raises nothing; what it does not take is lost. A thread that says how far it is must not end by
    it, nor may a record be lost to the line above it."""
    return _Unfailing(stderr)


class _Unfailing:
    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Checked(io.TextIOBase):
    """A stdout whose failures are told from those of other files; None (closed from the start) takes all."""

    def __init__(self, stdout: TextIO | None) -> None:
        self._stdout = stdout

    def write(self, text: str) -> int:
        return self._try(lambda stdout: stdout.write(text)) or 0

    def flush(self) -> None:
        self._try(lambda stdout: stdout.flush())

    def isatty(self) -> bool:
        return self._stdout is not None and self._stdout.isatty()

    def _try(self, call: Callable[[TextIO], int | None]) -> int | None:
        if self._stdout is None:
            return None
        try:
            return call(self._stdout)
        except OSError as error:
            raise StdoutError(error) from None
