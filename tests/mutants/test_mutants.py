"""The register of rooms fits the checkout, and what is told of a mutant is true."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.__main__ import SAMPLE, Change, explained, sampled, status
from tests.mutants.rooms import ROOMS, Room
from tests.support.command import ROOT


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_has_files_and_tests(room: Room) -> None:
    """A file that moves takes its line along: each pattern finds something, and each test is there."""
    assert all(list(ROOT.glob(pattern)) for pattern in room.files)
    assert all((ROOT / test).exists() for test in room.tests)


def test_every_pure_room_is_mutated() -> None:
    """The rules are in it whole, and nothing is mutated in two rooms."""
    files = [file for room in ROOMS for pattern in room.files for file in ROOT.glob(pattern)]
    assert len(files) == len(set(files))
    for folder in ("bridge/core", "bridge/contract", "listeners/core"):
        assert set((ROOT / folder).rglob("*.py")) <= set(files)


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "survived"), (1, "caught"), (33, "no test"), (None, "not tried"), (-24, "ran away"), (-9, "ran away")],
)
def test_exit_codes(code: int | None, said: str) -> None:
    """What pytest says, what a signal says, and that nothing was said."""
    assert status(code) == said


def changed(before: str, after: str) -> Change:
    one, other = (ast.parse(f"def f():\n    {line}").body[0] for line in (before, after))
    assert isinstance(one, ast.FunctionDef)
    return Change(one, other)


def test_a_change_of_wording_is_told_from_a_change_of_rules() -> None:
    """A sentence in quotes may be put differently; a word that is compared, a number, and what is called may not."""
    assert changed("raise E('no such queue here')", "raise E('XXno such queue hereXX')").wording
    assert not changed("raise E('no such queue here')", "raise E(None)").wording
    assert not changed("return 'queue'", "return 'XXqueueXX'").wording
    assert not changed("return a < 1", "return a <= 1").wording
    assert changed("return a < 1", "return a <= 1").lines == ["-    return a < 1", "+    return a <= 1"]


def test_what_is_explained_and_what_is_sampled() -> None:
    """Names in backticks are explained; a sample depends on the names alone."""
    assert explained("`a.b.xǁCǁd__mutmut_3` is equal, `a.b.x_e` is no mutant") == {"a.b.xǁCǁd__mutmut_3"}
    names = [f"a.x_f__mutmut_{number}" for number in range(100)]
    assert sampled(names) == sampled(reversed(names)) and len(set(sampled(names))) == SAMPLE
