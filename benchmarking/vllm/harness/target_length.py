"""How many tokens each prompt is answered with, where OUTPUT_LEN_DISTRIBUTION lets lengths vary.

A prompt's length is a pure function of its token ids: they are hashed to a share in [0, 1), and the share is put
through the inverse of the distribution. The engines (output_length.py) and the check of a run's result compute it
independently of each other, in any process and on any machine, and agree.

    fixed         OUTPUT_LEN for every prompt
    uniform       every length from OUTPUT_LEN_MIN to OUTPUT_LEN_MAX equally often; the mean is their midpoint
    log-uniform   every doubling equally often: P(k) = ln((k + 1) / k) / ln((MAX + 1) / MIN) for MIN <= k <= MAX.
                  Few long among many short requests, as in served traffic; 16 to 512 has a mean of 143
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import config
import numpy as np
import numpy.typing as npt

Knobs = Mapping[str, Any]
CONFIGURED: Knobs = vars(config)

_INVERSE_CDF: dict[str, Callable[[float, Knobs], int]] = {
    "fixed": lambda _, knobs: int(knobs["OUTPUT_LEN"]),
    "uniform": lambda share, knobs: (
        knobs["OUTPUT_LEN_MIN"] + int(share * (knobs["OUTPUT_LEN_MAX"] + 1 - knobs["OUTPUT_LEN_MIN"]))
    ),
    "log-uniform": lambda share, knobs: int(
        knobs["OUTPUT_LEN_MIN"] * ((knobs["OUTPUT_LEN_MAX"] + 1) / knobs["OUTPUT_LEN_MIN"]) ** share
    ),
}
DISTRIBUTIONS = tuple(_INVERSE_CDF)


def target_length(prompt_token_ids: npt.ArrayLike, knobs: Knobs = CONFIGURED) -> int:
    """Tokens to generate for this prompt, an end-of-sequence token included; under a record's `knobs` or today's.

    Raises KeyError for an unknown distribution, which preflight refuses before.
    """
    return length_at(_share(prompt_token_ids), knobs)


def length_at(share: float, knobs: Knobs = CONFIGURED) -> int:
    """The length below which a `share` of all lengths, 0 to 1, lies."""
    length = _INVERSE_CDF[knobs["OUTPUT_LEN_DISTRIBUTION"]](share, knobs)
    # A power rounded up at the very end of the range may reach one too many.
    return min(length, longest_output(knobs))


def longest_output(knobs: Knobs = CONFIGURED) -> int:
    """Most tokens that any prompt is answered with."""
    return int(knobs["OUTPUT_LEN" if knobs["OUTPUT_LEN_DISTRIBUTION"] == "fixed" else "OUTPUT_LEN_MAX"])


def described(knobs: Knobs = CONFIGURED) -> str:
    """The lengths in a few words: "128", "16 to 512, log-uniform"."""
    if (distribution := knobs["OUTPUT_LEN_DISTRIBUTION"]) == "fixed":
        return str(knobs["OUTPUT_LEN"])
    return f"{knobs['OUTPUT_LEN_MIN']:,} to {knobs['OUTPUT_LEN_MAX']:,}, {distribution}"


def _share(prompt_token_ids: npt.ArrayLike) -> float:
    """The ids' hash as a share in [0, 1); 53 bits, all that a float holds."""
    tokens = np.asarray(prompt_token_ids, dtype="<i4").tobytes()
    digest = hashlib.blake2b(tokens, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
