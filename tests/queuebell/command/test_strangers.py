"""A bridge's address at which something else answers: every command and the listener say so, with the address."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from bridge.contract.errors import BusUnavailable, ChannelLost
from bridge.contract.event import CloudQueueWorkDetected
from bridge.producer.buses.http import HttpBus
from listeners.session.channels.websocket import WebSocketChannel
from queuebell.command.main import main
from tests.support.processes import GLANCE_S

QUEUE = "billing/orders"
HTML = ("text/html", b"<html><body>hush</body></html>")
KINDS: dict[str, tuple[int, str, bytes]] = {
    "404 page": (404, *HTML),
    "404 JSON": (404, "application/json", b'{"detail": "Not Found"}'),
    "404 empty": (404, "text/plain", b""),
    "401": (401, *HTML),
    "page": (200, *HTML),
    "JSON": (200, "application/json", b"{}"),
    "JSON list": (200, "application/json", b"[1]"),
    "nearly": (200, "application/json", b'{"ready": "yes"}'),
    "empty": (200, "text/plain", b""),
    "login": (302, *HTML),
    "500": (500, *HTML),
}


class Stranger:
    """Another web server, which answers everything alike."""

    def __init__(self, status: int, kind: str, body: bytes) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                away = status == 302 and self.path != "/login"
                self.send_response(status if away or status != 302 else 200)
                if away:
                    self.send_header("Location", "/login")
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.where = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(GLANCE_S,), name="stranger", daemon=True)


@pytest.fixture(scope="module", params=KINDS)
def stranger(request: pytest.FixtureRequest) -> Iterator[Stranger]:
    made = Stranger(*KINDS[request.param])
    made.thread.start()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


@pytest.mark.parametrize(
    "words", [["status"], ["status", "--json"], ["check"], ["explain", QUEUE], ["queue", "forget", QUEUE]]
)
def test_a_command_says_that_it_is_no_bridge(
    words: list[str], stranger: Stranger, capsys: pytest.CaptureFixture[str]
) -> None:
    """With 69 and the address, and without a word of readiness."""
    assert main([*words, "--bridge", f"http://{stranger.where}"]) == 69
    said = capsys.readouterr()
    assert f"http://{stranger.where}" in said.err and "ready" not in said.out.lower()
    assert "no bridge" in said.err or "it answered" in said.err
    assert "hush" not in said.out + said.err


@pytest.mark.parametrize("words", [["queue", "list"], ["queue", "put", QUEUE, "x"]])
def test_a_command_says_that_it_is_no_queue_service(
    words: list[str], stranger: Stranger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is there who could carry it out: 69, as for the bridge."""
    assert main([*words, "--store", f"http://{stranger.where}"]) == 69
    said = capsys.readouterr()
    assert f"http://{stranger.where}" in said.err and said.out == ""


@pytest.mark.parametrize(
    "words",
    [["status"], ["check"], ["explain", QUEUE], ["publish", QUEUE], ["queue", "forget", QUEUE], ["queue", "list"]],
)
@pytest.mark.parametrize("key", ["bridge", "store"])
def test_a_password_in_an_address_is_refused_by_each_command(
    words: list[str], key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody asks for one, and nobody shows it; wherever the address stands."""
    monkeypatch.setenv(f"QUEUEBELL_{key.upper()}", "http://me:hush@127.0.0.1:1")
    assert main(words) == 78
    said = capsys.readouterr()
    assert "a bridge asks for none" in said.err and "http://127.0.0.1:1" in said.err
    assert "hush" not in said.out + said.err


async def test_a_listener_and_a_publisher_hear_what_answers(stranger: Stranger) -> None:
    """No session, and why; of a proxy that has nobody behind it that it may be one."""
    url = f"http://{stranger.where}"
    channel, bus = WebSocketChannel(url), HttpBus(url)
    with pytest.raises(ChannelLost, match=r"no bridge|as a proxy does"):
        await channel.connect()
    assert str(channel) == url
    with pytest.raises(BusUnavailable, match=url):
        await bus.publish([CloudQueueWorkDetected("billing", "orders")])
    await channel.close()
    await bus.close()


def test_nobody_there_is_told_with_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    """By each command."""
    for words in (["status"], ["explain", QUEUE], ["queue", "forget", QUEUE]):
        assert main([*words, "--bridge", "http://127.0.0.1:1"]) == 69
        assert "http://127.0.0.1:1" in capsys.readouterr().err


async def test_a_way_to_nobody_is_told_without_the_librarys_words() -> None:
    """They hold the whole address."""
    channel = WebSocketChannel("http://127.0.0.1:1")
    with pytest.raises(ChannelLost, match="no session: Connection refused"):
        await channel.connect()
    await channel.close()
