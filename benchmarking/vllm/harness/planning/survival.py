"""How likely a request is to go on, by the tokens that it has generated: Kaplan and Meier's estimate.

Of the requests that reached an age, some ended there. Requests that still run count as long as they have lived, so
the many short ones that end first do not make all look short. Until something ended early, every request is expected
to reach `max_tokens`; with a fixed length that stays exact.
"""

import numpy as np
import numpy.typing as npt
from harness.planning.window import Int64s


class Survival:
    def __init__(self, max_tokens: int) -> None:
        # By age, which is tokens generated: from 0 to max_tokens.
        self._reached = np.zeros(max_tokens + 2, np.int64)
        self._ended = np.zeros(max_tokens + 2, np.int64)
        self._estimate()

    def reached(self, ages: Int64s) -> None:
        """Requests that have just generated their token of that number."""
        self._reached += np.bincount(np.minimum(ages, len(self._reached) - 1), minlength=len(self._reached))

    def ended(self, age: int) -> None:
        self._ended[min(age, len(self._ended) - 1)] += 1
        self._estimate()

    def chances(self, ages: Int64s, since: Int64s) -> npt.NDArray[np.float64]:
        """[requests, steps]: that a request which has lived until `since` holds its blocks at each of `ages`.

        One more request is assumed to go on at every age, so that a few that ended do not rule out that any goes on.
        """
        last = len(self._chance) - 1
        to = self._chance[np.minimum(np.maximum(ages, 0), last)]
        given = np.maximum(self._chance[np.minimum(since, last)], 1e-9)
        return np.where(ages < 0, 0.0, np.minimum(to / given[:, None], 1.0))

    def _estimate(self) -> None:
        going_on = 1 - self._ended[1:-1] / (np.maximum(self._reached[1:-1], self._ended[1:-1]) + 1)
        # chance[a]: to reach age a. Blocks are given back when the step after the last token is planned, so a request
        # still holds them at the age at which it ends.
        self._chance = np.concatenate([[1.0, 1.0], np.cumprod(going_on)])
        self._chance[-1] = 0.0
        lives = self._chance[1:-1]
        self.mean_length = float(lives.sum())
        self.mean_age = float((lives * np.arange(len(lives))).sum() / lives.sum())
