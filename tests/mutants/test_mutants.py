"""The register of rooms fits the checkout, and what is told of a mutant is true."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutants.__main__ import Change
from tests.mutants.rooms import ROOMS, Room, exceptions, files, product
from tests.support.command import ROOT


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_has_files_and_tests(room: Room) -> None:
    """A file that moves takes its line along: each pattern finds something, and each test is there."""
    assert files(room) and all(list(ROOT.glob(pattern)) for pattern in room.files)
    assert all((ROOT / test.partition("::")[0]).exists() for test in room.tests)


def test_every_file_of_the_product_is_in_one_room() -> None:
    """No file escapes the tool, but for the exceptions that are named with their reason."""
    counts = Counter(file for room in ROOMS for file in files(room))
    assert set(counts.values()) == {1}
    assert counts.keys() | exceptions() == product()
    assert not counts.keys() & exceptions()


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
