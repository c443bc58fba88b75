"""A small local server whose every answer is written by the test; runs in a thread, ends with its block.

    with answering(one_second_late) as address: ...

An answer is `async def answer(number, say)`: the request's number from 0, and what sends bytes.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator

HEAD = b"HTTP/1.1 %d Whatever\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n%s\r\n"


class Say:
    def __init__(self, writer: asyncio.StreamWriter, server: asyncio.Server) -> None:
        self._writer, self._server = writer, server

    def _write(self, data: bytes) -> None:
        # A caller that left is no news.
        if not self._writer.transport.is_closing():
            self._writer.write(data)

    def head(self, status: int = 200, more: bytes = b"") -> None:
        self._write(HEAD % (status, more))

    def raw(self, data: bytes) -> None:
        self._write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, message: dict | str) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self.raw(f"data: {text}\n\n".encode())

    def token(self, text: str = " word") -> None:
        self.event({"choices": [{"index": 0, "text": text}]})

    def usage(self, tokens: int) -> None:
        self.event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})

    def done(self) -> None:
        self.event("[DONE]")
        self._write(b"0\r\n\r\n")

    def whole(self, tokens: int = 2) -> None:
        self.head()
        for _ in range(tokens):
            self.token()
        self.usage(tokens)
        self.done()

    def refuse(self, status: int = 429, retry_after_s: float | None = None) -> None:
        body = b'{"error": {"message": "too many"}}'
        self.head(status, b"Retry-After: %g\r\n" % retry_after_s if retry_after_s is not None else b"")
        self.raw(body)
        self._write(b"0\r\n\r\n")

    def cut(self) -> None:
        self._writer.transport.abort()

    def die(self) -> None:
        """As a process that is gone: nobody listens any more, every connection is reset."""
        self._server.close()
        self.cut()


Answer = Callable[[int, Say], Awaitable[None]]


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The server's base URL. Only POSTs are numbered; GETs find nothing but the model's name."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    found: list[asyncio.Server] = []
    number = iter(range(1_000_000))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(_length(head))
                if head.startswith(b"POST /v1/"):
                    await answer(next(number), Say(writer, found[0]))
                else:
                    _small(writer, head)
                await writer.drain()
        writer.close()

    async def start() -> None:
        found.append(await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000))
        ready.set()

    def run() -> None:
        loop.create_task(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(5)
    yield f"http://127.0.0.1:{found[0].sockets[0].getsockname()[1]}"
    asyncio.run_coroutine_threadsafe(_end_all(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _small(writer: asyncio.StreamWriter, head: bytes) -> None:
    body = b'{"data": [{"id": "m"}]}' if head.startswith(b"GET /v1/models") else b"{}"
    status = b"200 OK" if head.startswith(b"GET /v1/models") else b"404 Not Found"
    writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
