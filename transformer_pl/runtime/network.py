"""Whether a server answers: asked before a library that would take long to give up."""

import http.client
import queue
import socket
import ssl
import threading
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, getproxies, proxy_bypass, urlopen

PORTS = {"http": 80, "https": 443}


def why_unreachable(address: str, seconds: float = 3.0) -> str | None:
    """None where the server of a URL, or the proxy before it, takes a connection; else why not."""
    url = urlsplit(address)
    proxy = getproxies().get(url.scheme)
    if proxy and not proxy_bypass(url.hostname or ""):
        url = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    answer: queue.Queue[str | None] = queue.Queue()

    def knock() -> None:
        try:
            port = url.port or PORTS.get(url.scheme, 443)
            socket.create_connection((url.hostname, port), timeout=seconds).close()
            answer.put(None)
        except (OSError, ValueError) as error:
            answer.put(str(error))

    threading.Thread(target=knock, daemon=True).start()  # looking up a name knows no time-out of its own
    try:
        return answer.get(timeout=seconds)
    except queue.Empty:
        return f"none in {seconds:g} s"


def responds(address: str, seconds: float) -> bool:
    """Whether a web server responds to a request, with whatever status. One that hangs may still take connections."""
    try:
        urlopen(Request(address, method="HEAD"), timeout=seconds).close()
    except HTTPError as error:
        error.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return isinstance(getattr(error, "reason", None), ssl.SSLError)  # we may lack the certificate that W&B has
    return True
