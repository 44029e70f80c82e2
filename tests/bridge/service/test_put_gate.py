"""The gate's settings, wherever they come from, and what it says of itself."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

import pytest

from bridge.contract.errors import ConfigurationError, Overloaded
from bridge.core.admission import PUT_BYTES, Admission, Ticket
from bridge.http.azure.front import AzureFront
from bridge.observe.facts import Fact, PutRefused
from bridge.queues.embedded import memory
from bridge.queues.embedded.memory import MemoryStore
from bridge.service.put_gate import REFUSING_S, SAID_EVERY_S, PutGate
from queuebell import assembly as assembly_module
from queuebell.assembly import assemble
from queuebell.command import serve
from queuebell.settings import load


def test_its_numbers_reach_the_rule_and_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """From the file, the environment and the command line, each before the one named first."""
    windows: list[float] = []
    gates: list[PutGate] = []

    def a_store(*args: Any, put_window_s: float, **more: Any) -> MemoryStore:
        windows.append(put_window_s)
        return MemoryStore(*args, **more)

    def a_front(*args: Any, gate: PutGate, **more: Any) -> AzureFront:
        gates.append(gate)
        return AzureFront(*args, gate=gate, **more)

    monkeypatch.setattr(memory, "MemoryStore", a_store)
    monkeypatch.setattr(assembly_module, "AzureFront", a_front)
    file = tmp_path / "queuebell.toml"
    file.write_text("put_window_s = 30\nput_waiting_bytes = 10000000\nput_wait_ms = 50\n")
    environment = {"QUEUEBELL_PUT_WAIT_MS": "60", "QUEUEBELL_PUT_WAITING_BYTES": "20000000"}
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    options = vars(parser.parse_args(["--put-waiting-bytes", "30000000"]))
    settings = load(str(file), environment=environment, options=options)
    service = assemble(settings, in_memory=True).service
    assert (service.gate.rule.bytes_max, service.gate.rule.wait_s) == (30_000_000, 0.06)
    assert windows == [30.0]
    settings = load(None, environment={"QUEUEBELL_AZURE_QUEUE": "127.0.0.1:0"})
    assembly = assemble(settings, in_memory=True)
    assert gates == [assembly.service.gate]
    options = vars(parser.parse_args(["--put-window-s", "1.5", "--put-wait-ms", "70"]))
    settings = load(str(file), environment={}, options=options)
    assert (settings.put_window_s, settings.put_wait_ms) == (1.5, 70)


@pytest.mark.parametrize(
    ("key", "value"),
    [("put_window_s", "0"), ("put_waiting_bytes", "1000000"), ("put_wait_ms", "0"), ("put_wait_ms", "60001")],
)
def test_what_could_not_work_is_refused(key: str, value: str) -> None:
    """Room for less than two of the largest puts would let none in."""
    with pytest.raises(ConfigurationError, match=key.upper()):
        load(None, environment={f"QUEUEBELL_{key.upper()}": value})


def test_wait_before_the_reading_reaches_the_rule() -> None:
    """Where the loop knows since when it reads, what lay unread counts as waiting."""
    gate = PutGate(Admission(1 << 20, 0.5, group=8), lambda: 20.0, lambda fact: None)
    gate.end(begun(gate))
    assert gate.rule.limit == 8.0
    gate.read_since = lambda: 10.0
    gate.end(begun(gate))
    assert gate.rule.limit == 1.0


def test_refusals_are_said_seldom_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A flood leaves one line in ten seconds, and the next one says how many there were."""
    now = 100.0
    gate = PutGate(Admission(3 * PUT_BYTES, 0.5), lambda: now, lambda fact: None)
    gate.admit(PUT_BYTES)
    for _ in range(5):
        gate.ask(PUT_BYTES)
    now += SAID_EVERY_S
    gate.ask(PUT_BYTES)
    assert [record.args for record in caplog.records] == [
        (1, "too much waits to be put"),
        (5, "too much waits to be put"),
    ]


def begun(gate: PutGate) -> Ticket:
    """Let one in that goes to the store at once."""
    ticket = gate.admit(1)
    gate.begin(ticket, 1)
    return ticket


def test_a_refusal_is_told_and_fades() -> None:
    """Each is a fact with its reason; the bridge says so for as long as it is news."""
    facts: list[Fact] = []
    now = 100.0
    gate = PutGate(Admission(3 * PUT_BYTES, 0.5), lambda: now, facts.append)
    assert gate.refusing() is None
    ticket = gate.admit(PUT_BYTES)
    with pytest.raises(Overloaded, match="too much waits") as refused:
        gate.admit(PUT_BYTES)
    assert (refused.value.code, refused.value.status, refused.value.retry_after) == ("too_many_requests", 429, 1.0)
    gate.begin(ticket, PUT_BYTES)
    now += 0.75
    with pytest.raises(Overloaded, match="wait too long"):
        gate.admit(0)
    assert facts == [PutRefused("bytes"), PutRefused("wait")]
    assert gate.refusing() == (
        "puts were refused with 429 in the last 5 s; now 1 wait for the store, for some 0.8 s, "
        "and 8192 of 12288 bytes are taken; "
        "what was acknowledged is safe"
    )
    gate.end(ticket)
    now += REFUSING_S + 0.25
    assert gate.refusing() is None
