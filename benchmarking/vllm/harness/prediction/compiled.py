"""numba's compiler behind a decorator that type checkers see through.

The replay of 200,000 prompts touches some hundred million blocks and tokens, one at a time and in order: minutes in
plain Python, a second compiled. Machine code is cached, so only the first run pays for compilation.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba
import numpy as np
import numpy.typing as npt

P = ParamSpec("P")
R = TypeVar("R")

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
# A structured array, whose fields compiled code reads as attributes, `records[i].field`; numpy's types know none.
Records = Any

# numba looks only at the file of the function itself when it decides whether cached code is stale. Compiled functions
# here call each other across files, so the cache lies in a folder named after the content of all of them.
_SOURCES = sorted(Path(__file__).parent.glob("*.py"))
_DIGEST = hashlib.blake2b(b"".join(file.read_bytes() for file in _SOURCES), digest_size=8).hexdigest()
_CACHE = Path(__file__).parent / "__pycache__" / f"numba-{_DIGEST}"


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function` as machine code without the interpreter's lock: threads run it side by side."""
    if not numba.config.CACHE_DIR:
        numba.config.CACHE_DIR = str(_CACHE)
    result: Any = numba.njit(cache=True, nogil=True)(function)
    return result  # type: ignore[no-any-return]
