"""Zeros that cost memory only where they are written, by the page of 4 KiB."""

import mmap
from typing import Any

import numpy as np


def zeros(count: int, dtype: Any) -> Any:
    """As np.zeros. That takes memory back which was freed before, and then has to write it all.

    Raises MemoryError.
    """
    size_bytes = max(count, 1) * np.dtype(dtype).itemsize
    try:
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        raise MemoryError(f"Unable to allocate {size_bytes:,} bytes") from None
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype)[:count]


def shortage(error: MemoryError) -> ValueError:
    """What to say of one, from here or from numpy."""
    return ValueError(
        f"expected memory for what is to be replayed, found too little ({error}). Lower the number of "
        "rows, OUTPUT_LEN, MAX_NUM_SEQS or the KV cache (KV_CACHE_MEMORY_BYTES)"
    )
