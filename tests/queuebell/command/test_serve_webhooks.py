"""Webhooks by configuration: `queuebell serve --config` as a process."""

from __future__ import annotations

import http.server
import json
import pathlib
import queue
import threading
import urllib.request
from typing import Any

import pytest
from standardwebhooks import Webhook

from bridge.contract.errors import ConfigurationError
from queuebell.settings import load
from tests.support.command import perform, serving

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ENTRY = '[[webhook]]\nurl = "{url}"\nqueue = "billing/orders"\nsecret = "{secret}"\n'
OPEN = "allow_private = true\nallow_http = true\n"


def test_a_put_reaches_a_webhook(tmp_path: pathlib.Path) -> None:
    """A put is its own trigger; the endpoint stands among the listeners."""
    got: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()

    class Target(http.server.BaseHTTPRequestHandler):
        def do_OPTIONS(self) -> None:
            self.send_response(200)
            self.send_header("WebHook-Allowed-Origin", self.headers["WebHook-Request-Origin"])
            self.send_header("WebHook-Allowed-Rate", self.headers["WebHook-Request-Rate"])
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()
            got.put((dict(self.headers.items()), body))

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Target) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            file = tmp_path / "queuebell.toml"
            url = f"http://127.0.0.1:{server.server_port}/hook?token=xyz-hidden"
            file.write_text(ENTRY.format(url=url, secret=SECRET) + OPEN)
            with serving(tmp_path / "data", "--config", str(file)) as bridge:
                bridge.client("queue", "put", "billing/orders", "x")
                headers, body = got.get(timeout=200)
                assert Webhook(SECRET).verify(body, headers)["subject"] == "billing/orders"
                with urllib.request.urlopen(f"{bridge.url}/v1/listeners", timeout=100) as answer:
                    (row,) = json.load(answer)["listeners"]
                assert (row["channel"], row["queues"]) == ("webhook", [{"queue": "billing/orders"}])
                assert "xyz-hidden" not in json.dumps(row)
                assert "webhook" in bridge.client("status")
                assert "all is well" in bridge.client("check", code=0), "work waits, and the webhook was told of it"
                assert "no listener is subscribed" not in bridge.client("status")
                code, log = bridge.stop()
                assert code == 0
                assert "xyz-hidden" not in log
        finally:
            server.shutdown()
            thread.join()


def test_a_webhook_that_is_not_reached_is_named(tmp_path: pathlib.Path) -> None:
    """With its address, without what may be secret in it, and with what to do; by `check` and by `status`."""
    file = tmp_path / "queuebell.toml"
    url = "http://127.0.0.1:1/hook?token=xyz-hidden"
    file.write_text(ENTRY.format(url=url, secret=SECRET) + OPEN)
    with serving(tmp_path / "data", "--config", str(file)) as bridge:
        bridge.client("queue", "put", "billing/orders", "x")
        while "http://127.0.0.1:1 on billing/orders: its webhook" not in (told := bridge.client("check", code=1)):
            pass
        assert "could not be reached" in told and "see whether the endpoint answers" in told
        assert "no listener is subscribed" in told and "xyz-hidden" not in told
        assert "its webhook was not told of the work" in bridge.client("status")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (ENTRY.format(url="http://127.0.0.1/", secret=SECRET), "webhook 1: url"),
        (ENTRY.format(url="https://example.com/", secret="hunter2"), "webhook 1: secret"),
        (ENTRY.format(url="https://example.com/", secret=SECRET).replace("billing/", ""), "webhook 1: queue"),
        ('[[webhook]]\nurl = "https://example.com/"\n', "webhook"),
        (ENTRY.format(url="https://example.com/", secret=SECRET) + "colour = 1\n", "colour"),
    ],
)
def test_a_faulty_entry_is_78_and_named(text: str, named: str, tmp_path: pathlib.Path) -> None:
    """Nothing is started, and the secret is not repeated."""
    file = tmp_path / "queuebell.toml"
    file.write_text(text)
    done = perform("serve", "--config", str(file), "--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"), code=78)
    line = done.stderr.decode()
    assert named in line
    assert "hunter2" not in line
    assert SECRET not in line
    assert not (tmp_path / "d").exists()


def test_several_entries_with_lists_of_secrets(tmp_path: pathlib.Path) -> None:
    """A secret is text or a list of it; a variable cannot hold tables."""
    file = tmp_path / "queuebell.toml"
    entry = ENTRY.format(url="https://example.com/", secret=SECRET)
    file.write_text(entry + entry.replace(f'"{SECRET}"', f'["{SECRET}", "{SECRET}"]'))
    one, two = load(str(file), environment={}).webhook
    assert (one.secret, two.secret) == (SECRET, (SECRET, SECRET))
    assert SECRET not in repr(one)
    with pytest.raises(ConfigurationError, match="QUEUEBELL_WEBHOOK"):
        load(None, environment={"QUEUEBELL_WEBHOOK": "https://example.com/"})
