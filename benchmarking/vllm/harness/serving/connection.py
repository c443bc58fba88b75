"""A thin HTTP/1.1 client for many streams on one core: httptools parses, a Protocol has no task or queue a stream.

aiohttp spends several times as much a chunk (client-capacity.py measures both), which shows as lateness at 500
requests/s. Both libraries come with vLLM's server.
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import httptools
from harness.serving import outcome
from harness.serving.exchange import Exchange

# Idle connections are used again within this time. vLLM's server closes them after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE);
# a request that is sent just then is lost.
REUSE_S = 2.0


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, from its base URL (http://host:port)."""

    url: str

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or (443 if self.is_secure else 80)

    @property
    def is_secure(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    def request(self, path: str, body: bytes) -> bytes:
        """The whole POST as bytes; OPENAI_API_KEY authorises it where it is set."""
        key = os.environ.get("OPENAI_API_KEY")
        lines = [
            f"POST {urlsplit(self.url).path.rstrip('/')}{path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *([f"Authorization: Bearer {key}"] if key else []),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Connection(asyncio.Protocol):
    """Carries one exchange at a time; `idle(self)` is called when it can carry the next."""

    def __init__(self, clock: Callable[[], float], idle: Callable[["Connection"], None]) -> None:
        self._clock, self._idle = clock, idle
        self._transport: Any = None
        self._exchange: Exchange | None = None
        self.idle_since = 0.0
        self.is_open = False
        self._now = 0.0

    def send(self, request: bytes, exchange: Exchange) -> None:
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._retry_after: str | None = None
        self._transport.write(request)

    def drop(self) -> None:
        """Closes at once; vLLM aborts a request whose connection is gone."""
        self._exchange = None
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:
            self.drop()
            return
        self._now = self._clock()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail("broken HTTP", str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._exchange is not None:
            began = self._exchange.record.status is not None
            cause = "stream cut" if began else "connection lost"
            self._fail(cause, str(exc or "the server closed the connection"))

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._exchange:
            self._exchange.headers(self._parser.get_status_code(), self._retry_after)

    def on_body(self, body: bytes) -> None:
        if self._exchange:
            self._exchange.body(body, self._now)
            if self._exchange and self._exchange.is_over:
                self.drop()

    def on_message_complete(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if self._parser.should_keep_alive():
            self.idle_since = perf_counter()
            self._idle(self)
        else:
            self.drop()
        exchange.complete()

    def _fail(self, cause: str, detail: str) -> None:
        exchange = self._exchange
        self.drop()
        if exchange:
            exchange.end(outcome.FAILED, cause, detail)


class Pool:
    """Connections to one endpoint; a free one is used again while it is fresh."""

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float]) -> None:
        self._endpoint, self._clock = endpoint, clock
        self._free: list[Connection] = []
        self._ssl = ssl.create_default_context() if endpoint.is_secure else None

    def free(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.is_open and perf_counter() - connection.idle_since < REUSE_S:
                return connection
            connection.drop()
        return None

    async def connect(self) -> Connection:
        """Raises OSError where nobody listens."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self._clock, self._free.append), self._endpoint.host, self._endpoint.port, ssl=self._ssl
        )
        return connection

    def close(self) -> None:
        for connection in self._free:
            connection.drop()
        self._free.clear()
