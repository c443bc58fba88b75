"""numba's compiler behind a decorator that type checkers see through.

The replay of 200,000 prompts touches some hundred million blocks and tokens, one at a time and in order: minutes in
plain Python, a second compiled. Machine code is cached, so only the first run pays for compilation.
"""

import hashlib
import os
import tempfile
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
# here call each other across files, so the cache lies in a folder named after the content of all files that use this.
_FOLDER = Path(__file__).parent
_TEXTS = [file.read_bytes() for file in sorted(_FOLDER.parent.rglob("*.py"))]
_DIGEST = hashlib.blake2b(b"".join(text for text in _TEXTS if b"compiled" in text), digest_size=8).hexdigest()
_ROOT = _FOLDER / "__pycache__" if os.access(_FOLDER, os.W_OK) else Path(tempfile.gettempdir())


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function` as machine code without the interpreter's lock: threads run it side by side."""
    if not numba.config.CACHE_DIR:
        numba.config.CACHE_DIR = str(_ROOT / f"numba-{_DIGEST}")
    result: Any = numba.njit(cache=True, nogil=True)(function)
    return result  # type: ignore[no-any-return]
