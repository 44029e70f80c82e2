"""What `queuebell scale` is told, and what it refuses."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.command.scale import load
from tests.support.command import perform

HERE = ["scale", "http://127.0.0.1:1", "billing/orders"]
GIVEN: dict[str, Any] = {
    "store": "http://127.0.0.1:8470",
    "queue": "billing/orders",
    "command": ["python", "worker.py"],
}


def test_a_file_has_a_table_for_each_queue(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "scale.toml"
    file.write_text(
        'bridge = "http://127.0.0.1:1"\n'
        '[[scale]]\nstore = "memory:a"\nqueue = "a/b"\ncommand = "python \'my worker.py\'"\n'
        '[[scale]]\nstore = "memory:a"\nqueue = "a/c"\ncommand = ["w"]\nbridge = "http://127.0.0.1:2"\nmax = 2\n'
    )
    first, second = load(str(file), environment={}, options={})
    assert first.command == ("python", "my worker.py")
    assert (first.bridge, second.bridge) == ("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert (first.max, second.max) == (8, 2)
    assert first.apart() != second.apart()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"no table \[\[scale\]\]"),
        ("scale = 3", r"no table \[\[scale\]\]"),
        ('[[scale]]\nstore = "s"\nqueue = "a/b"', "command is missing"),
        ('[[scale]]\nqueue = "a/b"\ncommand = "w"', "store is missing"),
        ("[[scale]]\nmaxx = 3", "unknown key 'maxx'; did you mean 'max'"),
        ('[[scale]]\nmax = "many"', r"\]\] 1: max: must be a whole number, not text"),
        ("[[scale]]\ncommand = [1]", r"\]\] 1: command 1: must be text, not a whole number"),
        ('[[scale]]\nactuator = "k8s"', "'k8s' is not a valid value; valid are process, exec, systemd"),
        (
            '[[scale]]\nactuator = "kubernetes"\ndeployment = "a"',
            r"\]\] 1: actuator: kubernetes was removed, .*: use KEDA, or the actuator exec with kubectl scale",
        ),
        ('[[scale]]\ncommand = "it\'s"', "command: cannot be split"),
        (
            '[[scale]]\nstore = "s"\nqueue = "a/b"\ncommand = "w"\nmin = 2\nmax = 1',
            r"\]\] 1: min is from 0 to max, which is 1",
        ),
        ('[[scale]]\nstore = "s"\nqueue = "a/b"\ncommand = "w"\n' * 2, "named twice"),
        ('[[scale]]\nstore = "s"\nqueue = "a/b"\ncommand = "w"\nunit = "u@.service"', r"\]\] 1: "),
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path: pathlib.Path, text: str, words: str) -> None:
    file = tmp_path / "scale.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        load(str(file), environment={}, options={})


def test_a_file_and_operands_are_one_too_many() -> None:
    with pytest.raises(ConfigurationError, match="leave them out"):
        load("scale.toml", environment={}, options=GIVEN)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (["scale"], 78, "store is missing"),
        (["scale", "http://127.0.0.1:1", "billing/orders"], 78, "queuebell scale: command is missing"),
        (["scale", "http://127.0.0.1:1", "billing/orders", "--min", "9", "--", "w"], 2, "min is from 0 to max"),
        (["scale", "http://127.0.0.1:1", "billing", "--", "w"], 2, "queue"),
        (["scale", "nowhere", "a/b", "--", "w"], 78, "store"),
        (["scale", "memory:a", "a/b", "--", "w"], 78, "name one with --bridge URL"),
        ([*HERE, "--actuator", "docker", "--", "w"], 78, "actuator"),
        ([*HERE, "--actuator", "exec"], 78, "command is missing: name, after --, the command that sets the number"),
        ([*HERE, "--actuator", "exec", "--", "scale-to", "3"], 78, "has no {}"),
        (
            [*HERE, "--actuator", "exec", "--grace", "5", "--", "scale-to", "{}"],
            78,
            "grace needs --actuator process",
        ),
        ([*HERE, "--actuator", "systemd"], 78, "unit is missing"),
        ([*HERE, "--actuator", "systemd", "--unit", "worker"], 78, "not a template unit"),
        ([*HERE, "--actuator", "systemd", "--unit", "w@", "--", "w"], 78, "command needs --actuator process"),
        ([*HERE, "--user", "--", "w"], 78, "user needs --actuator systemd"),
        ([*HERE, "--actuator", "kubernetes", "--deployment", "a"], 2, "use KEDA, or the actuator exec with kubectl"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(line: list[str], code: int, words: str) -> None:
    """S47: With the exit code of its kind."""
    assert words in perform(*line, code=code).stderr.decode()
