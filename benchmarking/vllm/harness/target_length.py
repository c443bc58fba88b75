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
from collections.abc import Callable, Sequence

import numpy as np

import config

_INVERSE_CDF: dict[str, Callable[[float], int]] = {
    "fixed": lambda _: config.OUTPUT_LEN,
    "uniform": lambda share: config.OUTPUT_LEN_MIN + int(share * (config.OUTPUT_LEN_MAX + 1 - config.OUTPUT_LEN_MIN)),
    "log-uniform": lambda share: int(
        config.OUTPUT_LEN_MIN * ((config.OUTPUT_LEN_MAX + 1) / config.OUTPUT_LEN_MIN) ** share
    ),
}
DISTRIBUTIONS = tuple(_INVERSE_CDF)


def target_length(prompt_token_ids: Sequence[int]) -> int:
    """Tokens to generate for this prompt, an end-of-sequence token included.

    Raises KeyError for an unknown distribution, which preflight refuses before.
    """
    length = _INVERSE_CDF[config.OUTPUT_LEN_DISTRIBUTION](_share(prompt_token_ids))
    # A power rounded up at the very end of the range may reach one too many.
    return min(length, longest_output())


def longest_output() -> int:
    """Most tokens that any prompt is answered with."""
    return config.OUTPUT_LEN if config.OUTPUT_LEN_DISTRIBUTION == "fixed" else config.OUTPUT_LEN_MAX


def _share(prompt_token_ids: Sequence[int]) -> float:
    """The ids' hash as a share in [0, 1); 53 bits, all that a float holds."""
    tokens = np.asarray(prompt_token_ids, dtype="<i4").tobytes()
    digest = hashlib.blake2b(tokens, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
