"""Spans: made where somebody asked, and by nothing of OpenTelemetry where nobody did."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.observe import tracing
from queuebell.bridge.observe.tracing import OPT_IN, Tracing
from tests.support.processes import ROOT, environment
from tests.support.spans import Spans, said, spans

# Private: `_begin`: the one function that starts every span.

QUEUE = "billing/orders"


@pytest.fixture
def made() -> Iterator[Spans]:
    with spans() as found:
        yield found


def on() -> Tracing:
    assert tracing.on is not None
    return tracing.on


@pytest.mark.parametrize(("words", "there"), [("", "[]"), ("http", "[]"), ("messaging", "['opentelemetry']")])
def test_nothing_of_opentelemetry_is_imported_unless_somebody_asks(words: str, there: str) -> None:
    """Bridge, producer, listener and command are there, and its modules are not."""
    program = """
import sys
from queuebell import Bridge, Listener, Publisher, PublishingQueue, open_store
from queuebell.bridge.http.api.app import WebServer
from queuebell.command import serve, listen, publish
from queuebell.bridge.observe import tracing
print(sorted({name.partition(".")[0] for name in sys.modules} & {"opentelemetry"}), tracing.on is None)
"""
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(OTEL_SEMCONV_STABILITY_OPT_IN=words),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == f"{there} {not words.startswith('messaging')}"


def test_where_the_extra_is_missing_one_is_told_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In code it is an error; the variable may be meant for others, and all goes on without spans."""
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError) as refused:
        tracing.start_tracing()
    assert install("otel") in str(refused.value)
    with caplog.at_level(logging.WARNING):
        tracing._begin("messaging")
    assert install("otel") in caplog.text and OPT_IN in caplog.text
    assert tracing.on is None


@pytest.mark.parametrize(
    ("store", "server"),
    [
        ("http://10.0.0.7:7780", {"server.address": "10.0.0.7", "server.port": 7780}),
        ("postgres://db.example/shop", {"server.address": "db.example"}),
        ("http://a:1,b:2", {}),
        ("http://[::1", {}),
        ("memory", {}),
        ("<Store at 0x1>", {}),
        ("", {}),
    ],
)
def test_the_server_is_told_where_the_address_names_one(store: str, server: dict[str, object], made: Spans) -> None:
    """Of several none is told, for nobody knows which one answered."""
    with on().settle(QUEUE, [], ["1"], store):
        pass
    told = said(made.one(f"settle {QUEUE}"))
    assert {name: value for name, value in told.items() if name.startswith("server.")} == server
