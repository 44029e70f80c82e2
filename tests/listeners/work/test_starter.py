"""What a worker's environment says of the socket to its scaler."""

from __future__ import annotations

import os
import socket

import pytest

from listeners.work.starter import VARIABLE, inherited, ticket


def test_the_socket_is_found_as_long_as_it_is_that_one() -> None:
    """A descriptor that was closed, or is another file by now, is none."""
    ours, theirs = socket.socketpair()
    other, another = socket.socketpair()
    with ours, theirs, other, another:
        fd = theirs.fileno()
        told = {VARIABLE: ticket(fd)}
        assert inherited(told) == fd
        os.dup2(other.fileno(), fd)
        assert inherited(told) is None
    assert inherited(told) is None


@pytest.mark.parametrize("text", ["", "3", "x:y", "3:", ":5", "-1:5", "99999:1"])
def test_anything_else_is_none(text: str) -> None:
    """And nobody is bothered with it."""
    assert inherited({VARIABLE: text}) is None
    assert inherited({}) is None
