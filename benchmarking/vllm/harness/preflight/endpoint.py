"""Does a server answer at all? Asked first, because the libraries that then talk to it retry for minutes."""

import ssl
import urllib.request
from http.client import HTTPException
from urllib.error import HTTPError

from harness.preflight.deadline import within

ANSWER_TIMEOUT_S = 5.0


def silence(url: str, through_proxy: bool) -> str | None:
    """Why nobody answers at `url`; None where somebody does, whatever the answer.

    `through_proxy`: whether the library that will use it goes through the environment's proxies.
    """
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=_trusting())]
    if not through_proxy:
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(url, method="HEAD")
    try:
        # Looking up a name knows no timeout of its own.
        within(2 * ANSWER_TIMEOUT_S, lambda: opener.open(request, timeout=ANSWER_TIMEOUT_S).close())
    except HTTPError:
        return None
    except TimeoutError:
        return f"no answer within {ANSWER_TIMEOUT_S:g} s"
    except (OSError, HTTPException, ValueError) as error:
        return str(error)
    return None


def _trusting() -> ssl.SSLContext:
    """Nothing is sent or believed here; whether a certificate is trusted is for the library that does."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
