"""Whether a server answers, itself or the proxy before it."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from transformer_pl.runtime.network import responds, why_unreachable


@pytest.fixture
def server(monkeypatch):
    """The port of a server that takes connections; no proxy is set."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_server_that_listens_answers(server):
    assert why_unreachable(f"http://127.0.0.1:{server}") is None


def test_one_that_does_not_is_reported_why(server):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "refused" in why_unreachable(f"https://127.0.0.1:{port}")


def test_where_a_proxy_is_set_it_is_asked(server, monkeypatch):
    """The server itself may then be out of reach; but for one that no proxy is for."""
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server}")
    assert why_unreachable("https://server.invalid:1") is None
    monkeypatch.setenv("no_proxy", "server.invalid")
    assert why_unreachable("https://server.invalid:1", seconds=5.0) is not None


def test_a_name_that_takes_long_to_look_up_is_not_waited_for(server, monkeypatch):
    known = threading.Event()

    def slow(*args, **rest):
        known.wait(5)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", slow)
    assert why_unreachable("https://slow.invalid", seconds=0.1) == "none in 0.1 s"
    known.set()


def test_a_web_server_responds_by_any_status_and_one_that_hangs_does_not(server):
    """One that hangs still takes connections."""
    handler = type("Knows", (BaseHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler.do_HEAD = lambda self: self.send_error(401)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as knows:
        threading.Thread(target=knows.serve_forever, daemon=True).start()
        assert responds(f"http://127.0.0.1:{knows.server_port}", seconds=30)
        knows.shutdown()
    assert not responds(f"http://127.0.0.1:{knows.server_port}", seconds=30)
    assert why_unreachable(f"http://127.0.0.1:{server}") is None
    assert not responds(f"http://127.0.0.1:{server}", seconds=0.2)
