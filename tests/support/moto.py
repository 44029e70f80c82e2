"""Amazon SQS as moto plays it: a server process of its own, for a module of tests."""

from __future__ import annotations

import sys

from tests.support.background_server import BackgroundServer

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
"""What the SDK wants in its environment; moto takes anything."""


def moto() -> BackgroundServer:
    """Return a server to be started; its ``url`` is the endpoint."""
    command = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0")
    return BackgroundServer(command, r"Running on (http://\S+)", **KEYS)
