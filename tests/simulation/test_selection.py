"""From options to plans and back: what is printed plays the same run again."""

from __future__ import annotations

import argparse
import shlex

import msgspec
import pytest

from tests.simulation.cli import add_arguments
from tests.simulation.fault import KINDS, Fault
from tests.simulation.plan import PRESETS
from tests.simulation.selection import (
    QUIET_S,
    RUN_MESSAGES,
    Selection,
    exact_command,
    parse_exact,
    parse_faults,
    plan_of,
    plans,
    replay_command,
)


def parsed(command: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "tests.simulation"]
    return parser.parse_args(words[3:])


@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        Selection(faults=(), hours=1.5, workers=7),
        Selection(faults=("crash", "half_open"), messages=10_000_000),
        Selection(messages=60, hours=0.1),
        Selection(auth=True, faults=("key_revoked",)),
        Selection(bridges=3, faults=("word_loss",)),
    ],
)
def test_the_command_that_replays_gives_the_same_plan(selection: Selection) -> None:
    """Whatever the options, the printed command's own options come to the very plan."""
    for plan in plans(selection):
        args = parsed(replay_command(selection, plan, 17))
        again = Selection(
            store=args.store,
            channel=args.channel,
            faults=args.faults,
            hours=args.hours,
            workers=args.workers,
            messages=args.messages,
            auth=args.auth,
            bridges=args.bridges or 1,
        )
        assert args.seed == 17
        assert plans(again) == [plan]


def test_an_exact_story_survives_the_way_through_the_shell() -> None:
    """Plan, seed and faults come back as they were."""
    plan = msgspec.structs.replace(PRESETS["own-broker"], workers=1, messages=2, handler_s=(0.5, 0.5), quiet_s=9.0)
    faults = [Fault(1.5, "frame_loss", "broker", 2.0, 0.5)]
    assert parsed(exact_command(plan, 3, faults)).exact == (plan, 3, faults)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not a story"),
        ('{"preset": "no", "seed": 1}', "no such preset"),
        ('{"preset": "own-wire", "seed": 1, "differs": {"speed": 1}}', "a plan has no speed"),
        ('{"preset": "own-wire", "seed": 1, "differs": {"workers": "x"}}', "not a story"),
        (
            '{"preset": "own-wire", "seed": 1, "faults": [{"at_s": 1, "kind": "rain", "target": "x", "length_s": 1}]}',
            "no such kind",
        ),
        ('{"preset": "own-wire", "seed": 1, "differs": {"batch": 0}}', "batch: must be 1 to 32"),
        ('{"preset": "own-wire", "seed": 1, "differs": {"workers": -1}}', "workers: must be 1 to"),
        ('{"preset": "own-wire", "seed": 1, "differs": {"hours": 1e308}}', "hours: must be"),
        ('{"preset": "own-wire", "seed": 1, "differs": {"handler_s": [2, 1]}}', "handler_s: must be"),
        ('{"preset": "own-wire", "seed": 1, "differs": {"faults": ["rain"]}}', "no such kind of fault: rain"),
        (
            (
                '{"preset": "own-wire", "seed": 1,'
                ' "faults": [{"at_s": -1, "kind": "crash", "target": "bridge", "length_s": 1}]}'
            ),
            "at_s, length_s and value must be",
        ),
        (
            (
                '{"preset": "own-wire", "seed": 1,'
                ' "faults": [{"at_s": 1, "kind": "crash", "target": "worker-9", "length_s": 1}]}'
            ),
            "there is no worker-9",
        ),
    ],
)
def test_a_broken_story_is_refused_with_its_reason(text: str, complaint: str) -> None:
    """Nothing is played that was not meant."""
    with pytest.raises(ValueError, match=complaint):
        parse_exact(text)


def test_faults_are_all_none_or_some() -> None:
    """Unknown ones are named, with those there are."""
    assert parse_faults("all") is None and parse_faults("none") == ()
    assert parse_faults("crash, pause,crash") == ("crash", "pause")
    with pytest.raises(ValueError, match="rain") as refusal:
        parse_faults("crash,rain")
    assert all(kind in str(refusal.value) for kind in KINDS)


def test_both_is_every_store_on_every_channel() -> None:
    """Four plans; one where one of each was asked for."""
    assert [plan.name for plan in plans(Selection())] == [
        "own-wire",
        "own-broker",
        "elsewhere-wire",
        "elsewhere-broker",
    ]
    only = plans(Selection(store="own", channel="wire"))
    assert only == [msgspec.structs.replace(PRESETS["own-wire"], quiet_s=QUIET_S)]


def test_one_seed_again_is_the_campaigns_run() -> None:
    """Without a store or channel of its own it is the same plan, restart and all; with them that plan alone."""
    seen = set()
    for seed in range(16):
        plan = plan_of(Selection(), seed)
        seen.add((plan.name, plan.quiet_restart))
        command = parsed(replay_command(Selection(), plan, seed))
        assert plan_of(Selection(store=command.store, channel=command.channel), seed) == plan
    assert len(seen) == 8


def test_ten_million_messages_are_many_runs() -> None:
    """No run holds more than it can, and none puts fewer than it was meant to."""
    for wanted in (1, 59, 999, 1000, 70_000, 10**9):
        for plan in plans(Selection(messages=wanted)):
            in_run = plan.messages * plan.producers
            assert min(wanted, RUN_MESSAGES) <= in_run <= min(wanted, RUN_MESSAGES) + plan.producers


def test_a_longer_story_is_as_dense() -> None:
    """Twelve times the virtual time, twelve times the messages."""
    for plan in plans(Selection(hours=1.0)):
        assert plan.messages == round(PRESETS[plan.name].messages * 1.0 / PRESETS[plan.name].hours)
