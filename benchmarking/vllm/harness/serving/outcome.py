"""What became of one request. Times are seconds on the client's clock, zero at the start of the row.

Definitions (docs: README, "Live traffic"):
    ttft    first token's arrival minus the scheduled arrival of the request, so waiting in the client counts
    gaps    seconds between arrivals of consecutive chunks that hold tokens (a chunk may hold several)
    e2e     last token's arrival minus the scheduled arrival
"""

from dataclasses import dataclass, field

COMPLETED, FAILED, CANCELLED, REFUSED = "completed", "failed", "cancelled", "refused"
RESULTS = (COMPLETED, FAILED, CANCELLED, REFUSED)
# Failures that a rate beyond the server's capacity explains; any other cause means that something is broken.
OVERLOAD_CAUSES = ("no answer in time", "stalled", "unfinished at the row's end")
# What a server that wants fewer requests answers.
REFUSING_STATUSES = (429, 503)


@dataclass(slots=True)
class Outcome:
    """One request, over all its attempts; `result` is one of RESULTS once it ended."""

    index: int
    family: str
    scheduled_s: float
    sent_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    ended_s: float | None = None
    tokens: int = 0
    prompt_tokens: int | None = None
    gaps: list[float] = field(default_factory=list)
    attempts: int = 0
    status: int | None = None
    result: str | None = None
    cause: str | None = None
    detail: str = ""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.scheduled_s

    @property
    def e2e_s(self) -> float | None:
        return None if self.last_s is None else self.last_s - self.scheduled_s

    @property
    def lateness_s(self) -> float | None:
        """How long after its scheduled arrival the client sent it; null where it never did."""
        return None if self.sent_s is None else self.sent_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds a token after the first; null with fewer than two."""
        if self.tokens < 2 or self.first_s is None or self.last_s is None:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1)

    def end(self, result: str, now: float, cause: str | None = None, detail: str = "") -> None:
        self.result, self.ended_s, self.cause, self.detail = result, now, cause, detail[:300]

    def begin_again(self) -> None:
        """Forgets what an attempt brought; its times must not mix with those of the next."""
        self.first_s = self.last_s = self.status = None
        self.tokens = 0
        self.gaps = []
