"""What a shell completes: asked as a shell asks, and of real shells in `test_completion_shells`."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from queuebell.command.main import SUBCOMMANDS
from tests.support.command import COMMAND, Serving, environment, serving
from tests.support.processes import PATIENCE_S
from tests.support.terminal import Terminal


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One bridge for all, with two queues."""
    with serving(tmp_path_factory.mktemp("completion") / "q.db") as running:
        running.client("queue", "create", "billing/orders")
        running.client("queue", "create", "shop/cart")
        yield running


def asked(line: str, **env: str) -> list[str]:
    """Ask as the shells' scripts do, and return the words."""
    given = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_IFS": "\n"}
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as file:
        subprocess.run(
            COMMAND,
            env=environment({"_ARGCOMPLETE": "1", "_ARGCOMPLETE_COMP_WORDBREAKS": " ", **given, **env}),
            preexec_fn=lambda: os.dup2(writing, 8) and None,
            close_fds=False,
            timeout=PATIENCE_S,
            capture_output=True,
            check=False,
        )
        os.close(writing)
        return [word.strip() for word in file.read().split("\n") if word.strip()]


def test_commands_actions_options_and_choices_are_completed() -> None:
    assert asked("queuebell ") == list(SUBCOMMANDS)
    assert asked("queuebell sta") == ["status"]
    assert "replay" in asked("queuebell queue ")
    assert asked("queuebell queue for") == ["forget"]
    assert asked("queuebell status --w") == ["--watch"]
    assert asked("queuebell completion ") == ["bash", "zsh", "fish"]


def shell(tmp_path: pathlib.Path, *words: str, url: str) -> Terminal:
    """Start an interactive shell that finds the command."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "queuebell"
    command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    command.chmod(0o755)
    env = {"PATH": f"{command.parent}:{os.environ['PATH']}", "QUEUEBELL_BRIDGE": url, "HOME": str(tmp_path)}
    return Terminal(words, env={**env, "PS1": "> ", "INPUTRC": "/dev/null", "HISTFILE": ""})


def completes(terminal: Terminal) -> None:
    """Press tab after the beginning of a command, an action, and a queue."""
    terminal.keys("queuebell sta\t")
    terminal.shows("queuebell status")
    terminal.keys("--wa\t")
    terminal.shows("queuebell status --watch")
    terminal.keys("\x15queuebell queue pause bil\t")
    terminal.shows("queuebell queue pause billing/orders")


def test_bash_completes(bridge: Serving, tmp_path: pathlib.Path) -> None:
    with shell(tmp_path, "bash", "--norc", "--noprofile", "-i", url=bridge.url) as terminal:
        terminal.keys('eval "$(queuebell completion bash)"; echo re""ady\r')
        terminal.shows("ready")
        completes(terminal)


@pytest.mark.system
def test_fish_completes(bridge: Serving, tmp_path: pathlib.Path) -> None:
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "queuebell"
    command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    command.chmod(0o755)

    def given(line: str) -> list[str]:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"queuebell completion fish | source; complete -C '{line}'"],
            env=environment({"PATH": f"{command.parent}:{os.environ['PATH']}", "QUEUEBELL_BRIDGE": bridge.url}),
            capture_output=True,
            timeout=PATIENCE_S,
            check=True,
        )
        return [word.split("\t")[0] for word in done.stdout.decode().splitlines()]

    assert given("queuebell sta") == ["status"]
    assert given("queuebell status --w") == ["--watch"]
    assert given("queuebell queue pause bil") == ["billing/orders"]
