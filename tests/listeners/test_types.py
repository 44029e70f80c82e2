"""What a type checker makes of the public face, as a user's project runs it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from tests.support.command import ROOT

PROGRAM = """
import msgspec
from queuebell import Listener, Message, NewMessage, open_store

class Order(msgspec.Struct):
    cents: int

async def charge(message: Message[Order]) -> None:
    reveal_type(message.value)

def insert(messages: list[Message[Order]]) -> None:
    reveal_type(messages[0].value)

async def ship(message: Message) -> None:
    reveal_type(message.value)

async def main(words: list[str], mixed: list[str | bytes | NewMessage]) -> None:
    reveal_type(Listener("http://127.0.0.1:8470", "billing/orders", charge, payload=Order))
    reveal_type(Listener("http://127.0.0.1:8470", "billing/orders", insert, payload=Order))
    reveal_type(Listener("http://127.0.0.1:8470", "billing/orders", ship))
    async with open_store("http://127.0.0.1:8470") as store:
        await store.put("billing/orders", words)
        await store.put("billing/orders", mixed)
        await store.put("billing/orders", [NewMessage("text", ttl_s=60)])
"""


def test_the_value_of_a_message_is_of_the_payload_type(tmp_path: pathlib.Path) -> None:
    """In single and batch handlers, under --strict; a bare `Message` holds anything, and a put takes what it says."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", program.name],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    revealed = [line.split('"')[1] for line in checked.stdout.splitlines() if "Revealed type" in line]
    assert revealed == [
        *("program.Order", "program.Order", "Any"),
        *("listeners.listener.Listener[program.Order]", "listeners.listener.Listener[program.Order]"),
        "listeners.listener.Listener[Any]",
    ]
