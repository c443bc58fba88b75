"""A completions server without a model, to measure the client alone: tokens come at fixed times.

    python -m harness.serving.stub --tokens 20 --gap-ms 200

Runs in a process of its own and prints its port. One small chunk a token, as vLLM sends it.
"""

import argparse
import asyncio
import contextlib
import functools
import subprocess
import sys
from collections.abc import Iterator

import uvloop
from harness.overrides import SUITE_DIR
from harness.serving.connection import Endpoint

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = (
    'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1,"model":"m","choices":[{"index":0,'
    '"text":" word","logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":8,"total_tokens":%d,'
    '"completion_tokens":%d}}\n\n'
)
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
LAST = b"data: [DONE]\n\n"


class Stub(asyncio.Protocol):
    """Answers each POST with `tokens` chunks, `gap_s` apart, whatever was asked."""

    def __init__(self, tokens: int, gap_s: float) -> None:
        self._tokens, self._gap_s = tokens, gap_s
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        head, found, body = self._unread.partition(b"\r\n\r\n")
        if found and len(body) >= _length(head):
            self._unread = body[_length(head) :]
            if head.startswith(b"GET") or b"/v1/" not in head.partition(b"\r\n")[0]:
                self._transport.write(NOT_FOUND)  # type: ignore[attr-defined]
                return
            self._transport.write(HEAD)  # type: ignore[attr-defined]
            asyncio.get_running_loop().call_later(self._gap_s, self._token, 1)

    def _token(self, number: int) -> None:
        if self._transport.is_closing():
            return
        self._write((CHUNK % (8 + number, number)).encode())
        if number < self._tokens:
            asyncio.get_running_loop().call_later(self._gap_s, self._token, number + 1)
        else:
            self._write(LAST)
            self._transport.write(b"0\r\n\r\n")  # type: ignore[attr-defined]

    def _write(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%s\r\n" % (len(data), data))  # type: ignore[attr-defined]


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def serve(tokens: int, gap_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(functools.partial(Stub, tokens, gap_s), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def running(tokens: int, gap_s: float) -> Iterator[tuple[Endpoint, int]]:
    """A stub in a process of its own: where it listens, and its process id."""
    command = [sys.executable, "-m", "harness.serving.stub", "--tokens", str(tokens), "--gap-ms", str(1000 * gap_s)]
    with subprocess.Popen(command, cwd=SUITE_DIR, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Endpoint(f"http://127.0.0.1:{int(process.stdout.readline())}"), process.pid
        finally:
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A completions server without a model.")
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--gap-ms", type=float, default=200.0)
    options = parser.parse_args()
    uvloop.run(serve(options.tokens, options.gap_ms / 1000))
