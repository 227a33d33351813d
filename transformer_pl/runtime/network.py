"""Whether a server answers: checked before a library is called that would wait long for it.

Functions import http and ssl, because few commands need them.
"""

import queue
import socket
import threading
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}


def why_unreachable(address: str, seconds: float = 3.0) -> str | None:
    """Why the server of a URL, or its proxy, accepts no connection; None if it does."""
    from urllib.request import getproxies, proxy_bypass

    url = urlsplit(address)
    proxy = getproxies().get(url.scheme)
    if proxy and not proxy_bypass(url.hostname or ""):
        url = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    answer: queue.Queue[str | None] = queue.Queue()

    def connect() -> None:
        try:
            port = url.port or PORTS.get(url.scheme, 443)
            socket.create_connection((url.hostname or "", port), timeout=seconds).close()
            answer.put(None)
        except (OSError, ValueError) as error:
            answer.put(str(error))

    threading.Thread(target=connect, daemon=True).start()  # a thread, because a name lookup has no time-out
    try:
        return answer.get(timeout=seconds)
    except queue.Empty:
        return f"none in {seconds:g} s"


def responds(address: str, seconds: float) -> bool:
    """Whether a web server responds to a request, with any status. A server that hangs may still accept connections."""
    import http.client
    import ssl
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        urlopen(Request(address, method="HEAD"), timeout=seconds).close()
    except HTTPError as error:
        error.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return isinstance(getattr(error, "reason", None), ssl.SSLError)  # W&B may have a certificate that Python lacks
    return True
