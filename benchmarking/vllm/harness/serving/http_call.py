"""Small requests beside the load: health, metrics, reset. Blocking; used between rows and from the watching thread."""

import http.client
from dataclasses import dataclass

from harness.serving.connection import Endpoint


@dataclass(frozen=True)
class Answer:
    """`status` is null where no answer came; `text` then says why."""

    status: int | None
    text: str

    @property
    def is_ok(self) -> bool:
        return self.status == 200


def call(endpoint: Endpoint, method: str, path: str, body: bytes | None = None, timeout_s: float = 5.0) -> Answer:
    kind = http.client.HTTPSConnection if endpoint.is_secure else http.client.HTTPConnection
    connection = kind(endpoint.host, endpoint.port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return Answer(response.status, response.read().decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        return Answer(None, f"{type(error).__name__}: {error}")
    finally:
        connection.close()
