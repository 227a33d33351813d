"""Whether a server answers: checked before a library is called that would wait long for it."""

import queue
import threading


def why_unreachable(address: str, seconds: float = 3.0) -> str | None:
    """Why the web server at a URL, or its proxy, answers no request; None if it does, with any status.

    A server that hangs may still accept connections: only an answer counts.
    """
    answers: queue.Queue[str | None] = queue.Queue()
    thread = threading.Thread(target=lambda: answers.put(_failure(address, seconds)), daemon=True)
    thread.start()  # a thread, because a name lookup has no time-out
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return f"none in {seconds:g} s"


def _failure(address: str, seconds: float) -> str | None:
    import http.client  # few commands need these
    import ssl
    from urllib.error import HTTPError
    from urllib.request import Request, build_opener

    try:
        build_opener().open(Request(address, method="HEAD"), timeout=seconds).close()
    except HTTPError as error:
        error.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return None if isinstance(reason, ssl.SSLError) else str(reason)  # W&B may have a certificate that Python lacks
    return None
