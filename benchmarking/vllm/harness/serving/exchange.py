"""One attempt of one request: turns the bytes that arrive into times, tokens and an end.

Independent of sockets and clocks: the connection says when bytes came.
"""

from collections.abc import Callable

from harness.serving import events, outcome
from harness.serving.outcome import Outcome


class Exchange:
    """Fills `record` until it calls `ended(result, cause, detail)` once."""

    def __init__(
        self, record: Outcome, output_len: int, cancel_after: int | None, ended: Callable[[str, str | None, str], None]
    ) -> None:
        self.record = record
        self._expected, self._cancel_after = output_len, cancel_after
        self._ended: Callable[[str, str | None, str], None] | None = ended
        self._rest = b""
        self._error_body = b""
        self._usage_tokens: int | None = None
        self._counts_as_it_goes = False
        self._done = False
        self.retry_after_s: float | None = None

    @property
    def is_over(self) -> bool:
        return self._ended is None

    def headers(self, status: int, retry_after: str | None) -> None:
        self.record.status = status
        if retry_after and retry_after.replace(".", "", 1).isdigit():
            self.retry_after_s = float(retry_after)

    def body(self, data: bytes, now: float) -> None:
        if self.record.status != 200:
            self._error_body += data[:300]
            return
        # Only whole lines are read; what follows the last line end waits for the next bytes.
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and not self.is_over:
                self._event(line[5:].strip(), now)

    def complete(self) -> None:
        """The whole answer is there."""
        status = self.record.status
        if status in outcome.REFUSING_STATUSES:
            self.end(outcome.REFUSED, f"HTTP {status}", self._error_body.decode(errors="replace"))
        elif status != 200:
            self.end(outcome.FAILED, f"HTTP {status}", self._error_body.decode(errors="replace"))
        elif not self._done:
            self.end(outcome.FAILED, "stream cut", "the answer ended before [DONE]")
        else:
            self._judge()

    def end(self, result: str, cause: str | None = None, detail: str = "") -> None:
        ended, self._ended = self._ended, None
        if ended:
            ended(result, cause, detail)

    def _event(self, payload: bytes, now: float) -> None:
        try:
            event = events.read(payload)
        except events.BrokenStreamError as error:
            self.end(outcome.FAILED, str(error), payload[:100].decode(errors="replace"))
            return
        if event.error:
            self.end(outcome.FAILED, "error event", event.error)
        elif event.is_done:
            self._done = True
        elif event.is_usage:
            self._usage_tokens, self.record.prompt_tokens = event.tokens, event.prompt_tokens
        else:
            self._chunk(event, now)

    def _chunk(self, event: events.Event, now: float) -> None:
        record = self.record
        # A token whose text is not printable yet is a token; a role or an empty first chunk is none.
        total = event.tokens if event.tokens is not None else record.tokens + event.has_text
        if self._is_late_usage(event) or total <= record.tokens:
            return
        self._counts_as_it_goes = event.tokens is not None
        record.tokens = total
        if record.last_s is None:
            record.first_s = now
        else:
            record.gaps.append(now - record.last_s)
        record.last_s = now
        record.prompt_tokens = event.prompt_tokens or record.prompt_tokens
        if self._cancel_after is not None and total >= self._cancel_after:
            self.end(outcome.CANCELLED)

    def _is_late_usage(self, event: events.Event) -> bool:
        """Some servers put the usage into the last chunk, which has a choice without text: no token came with it."""
        if event.has_text or event.tokens is None or self.record.first_s is None or self._counts_as_it_goes:
            return False
        self._usage_tokens, self.record.prompt_tokens = event.tokens, event.prompt_tokens
        return True

    def _judge(self) -> None:
        record = self.record
        record.tokens = record.tokens if self._usage_tokens is None else self._usage_tokens
        if record.first_s is None:
            self.end(outcome.FAILED, "empty stream", "no token came before [DONE]")
        elif record.tokens != self._expected:
            cause = "short output" if record.tokens < self._expected else "long output"
            self.end(outcome.FAILED, cause, f"{self._expected} tokens asked for, {record.tokens} came")
        else:
            self.end(outcome.COMPLETED)
