"""Whether a server answers, itself or the proxy before it."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from transformer_pl.runtime.environment import why_unreachable


@pytest.fixture
def server(monkeypatch):
    """The port of a web server that answers with an error; no proxy is set."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    handler = type("Refuses", (BaseHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler.do_HEAD = lambda self: self.send_error(401)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_an_answer_with_any_status_is_one_and_a_server_that_hangs_gives_none(server):
    assert why_unreachable(f"http://127.0.0.1:{server}", seconds=30) is None
    with socket.create_server(("127.0.0.1", 0)) as hangs:  # it still takes connections
        port = hangs.getsockname()[1]
        assert why_unreachable(f"http://127.0.0.1:{port}", seconds=0.2)
    assert "refused" in why_unreachable(f"http://127.0.0.1:{port}", seconds=30)


def test_where_a_proxy_is_set_it_is_asked(server, monkeypatch):
    """The server itself may then be out of reach; but for one that no proxy is for."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server}")
    assert why_unreachable("http://server.invalid:1", seconds=30) is None
    monkeypatch.setenv("no_proxy", "server.invalid")
    assert why_unreachable("http://server.invalid:1", seconds=5.0)
