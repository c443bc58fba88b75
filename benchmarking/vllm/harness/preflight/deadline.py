"""A bound in seconds on calls that have none of their own."""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """The result of `call()`, or what it raises; TimeoutError if it takes longer.

    A call that outlasts its deadline goes on in a daemon thread, which keeps no process alive.
    """
    answers: queue.Queue[tuple[bool, Any]] = queue.Queue()

    def run() -> None:
        try:
            answers.put((True, call()))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            answers.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        done, answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if not done:
        raise answer
    result: T = answer
    return result
