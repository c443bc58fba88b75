"""A bounded queue in front of the engine: a request beyond the limit is refused at once, with 429 and Retry-After.

vLLM (0.26, 0.27) queues without bound. This is a middleware of its server, so that refusing costs no proxy:

    SERVING_ADMISSION_LIMIT=128 vllm serve … --middleware harness.serving.admission.AdmissionLimit

Runs in the server's process and imports nothing of the suite.
"""

import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

LIMIT_VARIABLE = "SERVING_ADMISSION_LIMIT"
RETRY_AFTER_S = 1
GUARDED = ("/v1/completions", "/v1/chat/completions")

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


class AdmissionLimit:
    """Counts requests inside, running or waiting, until their last byte is sent or their caller is gone."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._limit = int(os.environ[LIMIT_VARIABLE])
        self.inside = 0

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http" or scope["path"] not in GUARDED:
            await self._app(scope, receive, send)
        elif self.inside >= self._limit:
            await self._refuse(send)
        else:
            self.inside += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self.inside -= 1

    async def _refuse(self, send: Callable[[Message], Awaitable[None]]) -> None:
        message = f"{self.inside} requests are inside and {self._limit} are admitted; try again in {RETRY_AFTER_S} s"
        body = json.dumps({"error": {"message": message, "type": "TooManyRequests", "code": 429}}).encode()
        headers = [(b"content-type", b"application/json"), (b"retry-after", str(RETRY_AFTER_S).encode())]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body", "body": body})
