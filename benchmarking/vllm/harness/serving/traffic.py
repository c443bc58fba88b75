"""The requests that are offered: three families in a mix, drawn from one seed, or taken from a user's trace.

    chat    short prompts, short outputs, nothing shared
    long    prompts that are long to prefill, medium outputs
    agents  several calls at once over one of a few shared prefixes (tools, retrieved text), short outputs of very
            different lengths, a share of them cancelled in mid-stream

Prompts are texts of exactly the drawn number of tokens (harness/data/prompts.py).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import config
import numpy as np
from harness.serving import arrivals

# Raised whenever the same seed and knobs give other requests.
TRAFFIC_VERSION = 1
FAMILIES = ("chat", "long", "agents")
# Seconds over which the calls of one agent's step arrive.
BURST_S = 0.05


@dataclass(frozen=True, slots=True)
class Request:
    """`burst` is the place in a burst: 0 arrives on its own or first, the rest soon after it. `arrival_s` is set in
    traces only, `prompt_len` (tokens) where the prompt was made here."""

    family: str
    prompt: str
    output_len: int
    cancel_after: int | None = None
    burst: int = 0
    arrival_s: float | None = None
    prompt_len: int | None = None


@dataclass(frozen=True)
class Sizes:
    """Tokens of each family: means, from which lengths spread evenly by half to both sides."""

    chat_prompt: int
    chat_output: int
    long_prompt: int
    long_output: int
    agent_prefix: int
    agent_prefixes: int
    agent_prompt: int
    agent_output: int
    agent_burst: int
    agent_cancelled: float


def configured_sizes() -> Sizes:
    return Sizes(
        config.SERVING_CHAT_PROMPT_LEN,
        config.SERVING_CHAT_OUTPUT_LEN,
        config.SERVING_LONG_PROMPT_LEN,
        config.SERVING_LONG_OUTPUT_LEN,
        config.SERVING_AGENT_PREFIX_LEN,
        config.SERVING_AGENT_PREFIXES,
        config.SERVING_AGENT_PROMPT_LEN,
        config.SERVING_AGENT_OUTPUT_LEN,
        config.SERVING_AGENT_BURST,
        config.SERVING_AGENT_CANCELLED,
    )


def mix(text: str) -> dict[str, float]:
    """Shares of requests by family from "chat=0.6,long=0.15,agents=0.25"; they are made to add up to 1.

    Raises ValueError for an unknown family or a share that is no number above 0.
    """
    shares = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        if name not in FAMILIES or not share.replace(".", "", 1).isdigit() or float(share) <= 0:
            raise ValueError(
                f"SERVING_MIX {text!r}: expected family=share with families {', '.join(FAMILIES)} and shares above 0, "
                f"found {part.strip()!r}"
            )
        shares[name] = float(share)
    return {name: share / sum(shares.values()) for name, share in shares.items()}


def longest(family: str, sizes: Sizes) -> tuple[int, int]:
    """Most prompt and output tokens that a request of the family can be drawn with."""
    if family == "agents":
        return sizes.agent_prefix + _at_most(sizes.agent_prompt), max(2, 4 * sizes.agent_output)
    if family == "long":
        return _at_most(sizes.long_prompt), _at_most(sizes.long_output)
    return _at_most(sizes.chat_prompt), _at_most(sizes.chat_output)


def _at_most(mean: int) -> int:
    """The largest of the lengths that spread evenly by half to both sides."""
    return max(1, round(1.5 * mean))


class Generator:
    """Draws the first requests of an endless sequence: `take(n)` begins with `take(m)` for every m below n."""

    def __init__(self, words: Sequence[str], shares: dict[str, float], sizes: Sizes, seed: int) -> None:
        self._words, self._sizes = words, sizes
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, TRAFFIC_VERSION]))
        self._prefixes = [self._text(sizes.agent_prefix) for _ in range(sizes.agent_prefixes)]
        self._made: list[Request] = []
        # A burst brings several requests, so it is drawn less often.
        weights = {name: share / (sizes.agent_burst if name == "agents" else 1) for name, share in shares.items()}
        self._names = list(weights)
        self._bounds = np.cumsum(list(weights.values())) / sum(weights.values())

    def take(self, count: int) -> list[Request]:
        while len(self._made) < count:
            self._made += self._step()
        return self._made[:count]

    def _step(self) -> list[Request]:
        family = self._names[int(np.searchsorted(self._bounds, self._draw()))]
        sizes = self._sizes
        if family == "chat":
            return [self._single("chat", sizes.chat_prompt, sizes.chat_output)]
        if family == "long":
            return [self._single("long", sizes.long_prompt, sizes.long_output)]
        prefix = self._prefixes[int(self._draw() * len(self._prefixes))]
        return [self._agent_call(prefix, burst=place) for place in range(sizes.agent_burst)]

    def _single(self, family: str, prompt_len: int, output_len: int) -> Request:
        length = self._about(prompt_len)
        return Request(family, self._text(length), self._about(output_len), prompt_len=length)

    def _agent_call(self, prefix: str, burst: int) -> Request:
        sizes = self._sizes
        # From a word (a decision) to a long answer, evenly in the logarithm.
        output_len = max(2, round(2 * (2 * sizes.agent_output) ** self._draw()))
        cancelled = self._draw() < sizes.agent_cancelled
        cancel_after = 1 + int(self._draw() * (output_len - 1)) if cancelled else None
        own = self._about(sizes.agent_prompt)
        return Request(
            "agents", prefix + self._text(own), output_len, cancel_after, burst, prompt_len=sizes.agent_prefix + own
        )

    def _about(self, mean: int) -> int:
        return max(1, round(mean * (0.5 + self._draw())))

    def _draw(self) -> float:
        return float(arrivals.uniform(self._bits, 1)[0])

    def _text(self, length: int) -> str:
        places = self._bits.random_raw(length) % np.uint64(len(self._words))
        return "".join([self._words[int(place)] for place in places])


def schedule(
    requests: Sequence[Request], process: str, rate_rps: float, seed: int, burstiness: float
) -> list[tuple[float, Request]]:
    """Requests with their arrival in seconds, at a mean rate of `rate_rps`, in order of arrival."""
    if process == "replay":
        return _replayed(requests, rate_rps)
    heads = [request for request in requests if request.burst == 0]
    at = iter(arrivals.times(process, rate_rps * len(heads) / max(len(requests), 1), len(heads), seed, burstiness))
    timed = []
    last = 0.0
    for request in requests:
        last = next(at) if request.burst == 0 else last + BURST_S / max(config.SERVING_AGENT_BURST, 1)
        timed.append((last, request))
    return sorted(timed, key=lambda pair: pair[0])


def _replayed(requests: Sequence[Request], rate_rps: float) -> list[tuple[float, Request]]:
    """The trace's own arrivals, sped up or slowed down to the wanted mean rate."""
    times = [request.arrival_s or 0.0 for request in requests]
    span = max(times) - min(times)
    stretch = (len(times) - 1) / rate_rps / span if span else 0.0
    timed = [((at - min(times)) * stretch, request) for at, request in zip(times, requests, strict=True)]
    return sorted(timed, key=lambda pair: pair[0])


def fingerprint(timed: Sequence[tuple[float, Request]]) -> str:
    """SHA-256 over all that is sent and when; equal fingerprints are equal rows."""
    digest = hashlib.sha256()
    for at, request in timed:
        digest.update(json.dumps([round(at, 6), *asdict(request).values()]).encode())
    return digest.hexdigest()


def describe(timed: Sequence[tuple[float, Request]], source: str) -> dict[str, Any]:
    """What the record keeps of the traffic."""
    families = sorted({request.family for _, request in timed})
    return {
        "source": source,
        "version": TRAFFIC_VERSION,
        "fingerprint": fingerprint(timed),
        "families": {name: sum(request.family == name for _, request in timed) for name in families},
        "output_tokens_asked": sum(request.output_len for _, request in timed),
        "to_be_cancelled": sum(request.cancel_after is not None for _, request in timed),
    }
