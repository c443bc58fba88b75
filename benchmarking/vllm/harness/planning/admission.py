"""When an engine is given its next request: as soon as its KV cache will have room for it until it ends.

An engine that takes all that fits now runs out of blocks as its requests grow; it then throws requests out and computes
them again (preemption). Here the blocks of all requests in flight are foreseen for every step to come: a request grows
by one token a step, and ends at `max_tokens` or, where requests were seen to end earlier, with the chance that they
show. Blocks that neighbours share count once. Requests enter at the rate at which a full engine ends them: a few
prompt tokens in each step beside the decodes, rather than waves of prompts and then of decodes.

Known from the engine: that a step has ended, how many requests had their first token in it, which have ended.
"""

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from harness.planning.survival import Survival
from harness.planning.window import Int32s, Int64s

Floats = npt.NDArray[np.float64]
Tokens = TypeVar("Tokens", int, Int64s)

# A request that is handed over while a step runs joins the next step but one.
START_LAG = 2
# Steps looked at one by one; of a longer future, evenly spaced ones.
COLUMNS = 192
# Standard deviations that the blocks may exceed their mean where lengths vary.
MARGIN = 2.0
# Share of a full engine's requests that enter together at most: what leaves is missed until the next ones enter.
BURST_SHARE = 1 / 16


class Request(NamedTuple):
    key: int
    tokens: Int32s


class Foreseen(NamedTuple):
    """KV blocks in use in each of the steps to come."""

    mean: Floats
    variance: Floats
    last_alive: Floats  # the chance that the request admitted last still runs

    @property
    def peak(self) -> float:
        return float((self.mean + MARGIN * np.sqrt(self.variance)).max())


class Admission:
    """`kv_blocks`: those that requests can hold; `pace`: 1 is the rate of a full engine, 0 admits without delay;
    `burst_tokens`: tokens to compute that are let add up before requests enter, together."""

    def __init__(
        self, kv_blocks: int, block_size: int, max_tokens: int, max_in_flight: int, pace: float, burst_tokens: int = 0
    ) -> None:
        self._kv_blocks, self._block_size, self._max_tokens = kv_blocks, block_size, max_tokens
        self._max_in_flight, self._pace, self._burst_tokens = max_in_flight, pace, burst_tokens
        self._entering = False
        self._requests: list[Request] = []  # in flight, in order of admission
        # The same order: tokens of the prompt; blocks shared with the request before; tokens generated, 0 while no
        # step is known to have included the request.
        self._prompt, self._shared, self._age = (np.zeros(0, np.int64) for _ in range(3))
        self._survival = Survival(max_tokens)
        self._steps = np.arange(0, max_tokens + START_LAG + 1, -(-max_tokens // COLUMNS))
        # Of the requests in flight, and with the candidate that was looked at last, as long as nothing changes.
        self._foreseen: Foreseen | None = None
        self._looked_at: tuple[Request, Foreseen] | None = None
        self._most_blocks = 0
        self._own_blocks, self._admitted = 0, 0
        self._credit = 1.0

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    def allows(self, request: Request) -> bool:
        """Whether the engine should be given this request now. An idle engine takes any."""
        if not self._requests:
            return True
        # Those that will have ended before this one can join leave it their place.
        leaving = int((self._age > self._max_tokens - START_LAG).sum())
        if len(self._requests) - leaving >= self._max_in_flight or (self._pace and not self._is_due()):
            return False
        most = self._most_blocks + self._blocks_of(len(request.tokens) + self._max_tokens)
        return most <= self._kv_blocks or self._with(request).peak <= self._kv_blocks

    def admit(self, request: Request) -> None:
        shared = self._shared_with_last(request)
        if self._foreseen:
            self._foreseen = self._with(request)
        self._looked_at = None
        self._prompt = np.append(self._prompt, len(request.tokens))
        self._shared = np.append(self._shared, shared)
        self._age = np.append(self._age, 0)
        self._requests.append(request)
        self._most_blocks += self._blocks_of(len(request.tokens) + self._max_tokens)
        self._own_blocks += self._blocks_of(len(request.tokens)) - shared
        self._admitted += 1
        self._credit -= 1

    def stepped(self, first_tokens: int) -> None:
        """A step has ended in which so many requests had their first token; they come in the order of admission."""
        started = self._age > 0
        started[np.flatnonzero(~started)[:first_tokens]] = True
        self._age[started] += 1
        self._survival.reached(self._age[started])
        self._foreseen = self._looked_at = None
        rate = self._pace * self._rate() if self._admitted else 0.0
        self._credit = min(self._credit + rate, self._burst() + 2 * rate)

    def ended(self, key: int, generated: int) -> None:
        """A request has left the engine with so many tokens; 0 for one that was refused."""
        at = next(index for index, request in enumerate(self._requests) if request.key == key)
        if generated:
            self._survival.ended(generated)
        if at + 1 < len(self._requests):
            self._shared[at + 1] = min(self._shared[at], self._shared[at + 1])
        self._most_blocks -= self._blocks_of(len(self._requests.pop(at).tokens) + self._max_tokens)
        self._prompt, self._shared, self._age = (np.delete(a, at) for a in (self._prompt, self._shared, self._age))
        self._foreseen = self._looked_at = None

    def _is_due(self) -> bool:
        self._entering = self._credit >= (1 if self._entering else self._burst())
        return self._entering

    def _burst(self) -> float:
        """Requests that enter together."""
        if not self._own_blocks:
            return 1.0
        wanted = self._burst_tokens * self._admitted / (self._own_blocks * self._block_size)
        return max(1.0, min(wanted, self._full() * BURST_SHARE))

    def _rate(self) -> float:
        """Requests that end in a step of a full engine."""
        return self._full() / self._survival.mean_length

    def _full(self) -> float:
        """Requests that a full engine runs."""
        held = self._own_blocks / self._admitted + self._survival.mean_age / self._block_size + 0.5
        return min(self._max_in_flight, self._kv_blocks / held)

    def _with(self, candidate: Request) -> "Foreseen":
        """The steps to come if the candidate is admitted."""
        if self._looked_at and self._looked_at[0] is candidate:
            return self._looked_at[1]
        if self._foreseen is None:
            self._foreseen = self._foresee(self._prompt, self._shared, self._age)
        before = self._foreseen
        shared = np.array([self._shared_with_last(candidate)])
        alone = self._foresee(np.array([len(candidate.tokens)]), shared, np.zeros(1, np.int64))
        saved = shared[0] * np.minimum(before.last_alive, alone.last_alive)
        found = Foreseen(before.mean + alone.mean - saved, before.variance + alone.variance, alone.last_alive)
        self._looked_at = candidate, found
        return found

    def _foresee(self, prompt: Int64s, shared: Int64s, age: Int64s) -> "Foreseen":
        """Requests side by side, each sharing blocks with the one before while both run."""
        stride = int(self._steps[1])
        ages = age[:, None] + self._steps - np.where(age > 0, 0, START_LAG)[:, None]
        alive = self._survival.chances(ages, age)
        # At the end of a stride, where one column stands for several steps.
        blocks = np.where(ages < 0, 0, self._blocks_of(prompt[:, None] + ages + stride))
        saved = np.minimum(alive[1:], alive[:-1]) * shared[1:, None]
        variance = (alive * (1 - alive) * (blocks - shared[:, None]) ** 2).sum(axis=0)
        return Foreseen((alive * blocks).sum(axis=0) - saved.sum(axis=0), variance, alive[-1])

    def _shared_with_last(self, request: Request) -> int:
        if not self._requests:
            return 0
        before = self._requests[-1].tokens
        most = min(len(before) // self._block_size, (len(request.tokens) - 1) // self._block_size)
        length = most * self._block_size
        differs = np.flatnonzero(before[:length] != request.tokens[:length])
        return int(differs[0]) // self._block_size if len(differs) else most

    def _blocks_of(self, tokens: Tokens) -> Tokens:
        return -(-tokens // self._block_size)
