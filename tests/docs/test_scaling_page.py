"""docs/scaling.md and the units of systemd that it installs: what one says of the other."""

from __future__ import annotations

import argparse
import re

import pytest

from bridge.contract.settings import parse_toml
from listeners.core.processes import Limits
from listeners.scaling.actuators.systemd import SystemdActuator
from listeners.work.starter import SYSTEMD, VARIABLE
from queuebell.command import listen, scale
from tests.docs.snippets import snippets
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "scaling.md"
UNITS = ROOT / "deploy" / "systemd"
WORKER_GRACE_S = 20
"""What a worker takes to end in order, unless it is told otherwise."""


def settings(name: str) -> dict[str, list[str]]:
    """Return the settings of a unit, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text("utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in a language."""
    return [block.text for block in snippets() if block.page == PAGE and block.language == language]


def test_the_page_installs_what_is_there() -> None:
    """Every file that it names, to where the units look for it, and the user that they have."""
    (install,) = (text for text in blocks("sh") if "useradd" in text)
    for file in re.findall(r"deploy/systemd/\S+", install):
        assert (ROOT / file).exists(), file
    assert {file.name for file in UNITS.iterdir()} - {"queuebell.service"} == {
        word.rpartition("/")[2] for word in re.findall(r"deploy/systemd/\S+", install)
    }
    scaler, worker = settings("queuebell-scaler.service"), settings("queuebell-worker@.service")
    assert f" {scaler['User'][0]}\n" in install
    for each in (*scaler["LoadCredential"], *worker["LoadCredential"], *worker["EnvironmentFile"]):
        assert each.rpartition("/")[2] in install, each


def test_the_template_is_what_the_scaler_asks_for() -> None:
    """It tells systemd how it stands, is up within the time that it has, and ends in its own."""
    worker = settings("queuebell-worker@.service")
    assert worker["Type"] == ["notify"]
    assert f"{VARIABLE}={SYSTEMD}" in worker["Environment"]
    assert float(worker["TimeoutStartSec"][0]) == Limits().start_timeout_s
    assert float(worker["TimeoutStopSec"][0]) > WORKER_GRACE_S
    (tables,) = (parse_toml(text, "page") for text in blocks("toml") if 'actuator = "systemd"' in text)
    (table,) = tables["scale"]
    assert str(SystemdActuator(table["unit"])) == "queuebell-worker@.service"


@pytest.mark.parametrize(
    ("name", "command"), [("queuebell-scaler.service", scale), ("queuebell-worker@.service", listen)]
)
def test_a_unit_runs_our_command(name: str, command: object) -> None:
    """By its own parser."""
    program, _, *words = settings(name)["ExecStart"][0].split()
    assert program == "/opt/queuebell/bin/queuebell"
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)  # type: ignore[attr-defined]
    parser.parse_args(words)


def test_polkit_lets_the_scaler_do_this_and_no_more() -> None:
    """Its units by their whole names, to start and to stop; of one user, by one action."""
    rule = (UNITS / "50-queuebell-scaler.rules").read_text("utf-8")
    units, verbs = (re.compile(text) for text in re.findall(r"/(\^.*?\$)/\.test", rule))
    assert units.search("queuebell-worker@1.service")
    for other in ("queuebell.service", "ssh.service", "queuebell-worker@1.service.d", "queuebell-worker@a.service"):
        assert not units.search(other)
    assert [verb for verb in ("start", "stop", "restart", "reload", "kill") if verbs.search(verb)] == ["start", "stop"]
    assert 'action.id == "org.freedesktop.systemd1.manage-units"' in rule
    assert f'subject.user == "{settings("queuebell-scaler.service")["User"][0]}"' in rule
