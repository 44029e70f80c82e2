"""Amazon SQS as moto plays it: a server process of its own, for a module of tests."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.background_server import BackgroundServer

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
"""What the SDK wants in its environment; moto takes anything."""


def moto() -> BackgroundServer:
    """Return a server to be started; its ``url`` is the endpoint."""
    # -P: the modules beside it are named as the libraries they stand for.
    command = (sys.executable, "-P", str(Path(__file__).with_name("moto_server.py")), "-H", "127.0.0.1", "-p", "0")
    return BackgroundServer(command, r"Running on (http://\S+)", **KEYS)
