"""What GPUs can do at most: memory, matrix rate in bf16 without sparsity, memory bandwidth.

Measured rates come from large matrix products and copies on the card itself and are what a kernel can reach. Data
sheets promise more than any kernel reaches, so a floor computed from them is lower and the true gap to it smaller.
"""

from typing import NamedTuple

GB, TERA = 10**9, 10**12


class Gpu(NamedTuple):
    name: str
    memory_bytes: int
    flops: float  # bf16 floating-point operations a second, dense
    bandwidth: float  # bytes a second
    source: str

    @property
    def measured(self) -> bool:
        return self.source.startswith("measured")


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("H200", 143_771 * 2**20, 790 * TERA, 4.3 * TERA, "measured on one H200; memory as the driver reports it"),
        Gpu("B200", 180 * GB, 2250 * TERA, 8.0 * TERA, "NVIDIA data sheet"),
        Gpu("H100", 80 * GB, 989 * TERA, 3.35 * TERA, "NVIDIA data sheet, SXM"),
        Gpu("A100", 80 * GB, 312 * TERA, 2.039 * TERA, "NVIDIA data sheet, SXM 80 GB"),
        Gpu("L40S", 48 * GB, 362 * TERA, 0.864 * TERA, "NVIDIA data sheet"),
        Gpu("A10G", 24 * GB, 70 * TERA, 0.6 * TERA, "AWS and NVIDIA data sheets"),
        Gpu("L4", 24 * GB, 121 * TERA, 0.3 * TERA, "NVIDIA data sheet"),
    )
}


def find(name: str) -> Gpu:
    """A GPU by its name here or as drivers report it ("NVIDIA H200"). Raises ValueError with the names known."""
    known = [gpu for key, gpu in GPUS.items() if key in name.upper().replace("-", " ").split()]
    if not known:
        raise ValueError(f"GPU {name!r}: expected one of {sorted(GPUS)}; add its row to {__name__} with its source")
    return known[0]
