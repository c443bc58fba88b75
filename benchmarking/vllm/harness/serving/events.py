"""Server-sent events of OpenAI-compatible completions: what one `data:` line says."""

import json
from typing import Any, NamedTuple


class Event(NamedTuple):
    """`tokens` is the total generated so far where the server says so (vLLM: continuous_usage_stats), else null."""

    has_text: bool = False
    tokens: int | None = None
    prompt_tokens: int | None = None
    is_usage: bool = False
    is_done: bool = False
    error: str | None = None


DONE = Event(is_done=True)


class BrokenStreamError(ValueError):
    """The stream is not what the protocol promises; the message is the failure's cause."""


def read(payload: bytes) -> Event:
    """Raises BrokenStreamError for bytes that are no UTF-8 or no JSON object."""
    if payload == b"[DONE]":
        return DONE
    try:
        message = json.loads(payload.decode())
    except UnicodeDecodeError:
        raise BrokenStreamError("broken UTF-8") from None
    except ValueError:
        raise BrokenStreamError("broken JSON") from None
    if not isinstance(message, dict):
        raise BrokenStreamError("broken JSON")
    if message.get("error"):
        return Event(error=json.dumps(message["error"]))
    usage = message.get("usage") or {}
    choices = message.get("choices") or []
    return Event(
        has_text=bool(choices) and bool(_text(choices[0])),
        tokens=usage.get("completion_tokens"),
        prompt_tokens=usage.get("prompt_tokens"),
        is_usage=not choices and bool(usage),
    )


def _text(choice: dict[str, Any]) -> str:
    """Completions carry `text`, chat carries `delta.content`; a role alone is no text."""
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""
