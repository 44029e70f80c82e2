"""Errors: their codes, what goes with them, and what they say."""

from __future__ import annotations

import pytest

from bridge.contract import errors
from bridge.contract.errors import (
    BadInput,
    BadQueueReference,
    NotAllowed,
    Overloaded,
    QueuebellError,
    StoreUnavailable,
    UnknownOutcome,
    named,
    said,
)
from bridge.contract.names import parse_reference
from bridge.contract.partitioning import Partitions, parse_partitions


class Silent(Exception):
    """An error of somebody else's, whose text cannot be made."""

    def __str__(self) -> str:
        """Fail as foreign code does."""
        raise KeyError("x")


@pytest.mark.parametrize(
    ("error", "text", "name"),
    [
        (ValueError("no"), "no", "ValueError: no"),
        (ValueError(), "", "ValueError"),
        (KeyError("a"), "'a'", "KeyError: 'a'"),
        (Silent(), "(its text cannot be made: KeyError)", "Silent: (its text cannot be made: KeyError)"),
        (BadInput("bad_json", "what is wrong"), "what is wrong", "BadInput: what is wrong"),
        (Overloaded("full", 3.0), "full", "Overloaded: full"),
    ],
)
def test_an_error_is_said_with_and_without_its_type(error: Exception, text: str, name: str) -> None:
    """One whose own text cannot be made costs nobody the rest."""
    assert (said(error), named(error)) == (text, name)


def test_each_code_has_its_status() -> None:
    """The table of the interface; what it does not list is our own fault."""
    found = BadInput("too_large", "long")
    assert (found.code, found.status) == ("too_large", 413)
    assert (BadQueueReference("x").code, BadQueueReference("x").status) == ("bad_queue_reference", 400)
    assert BadInput("of a later version", "x").status == 500
    assert QueuebellError("x").status == 500


def test_a_store_says_when_to_come_again() -> None:
    """Or does not."""
    assert (StoreUnavailable("away", 2.5).retry_after, str(StoreUnavailable("away", 2.5))) == (2.5, "away")
    assert (UnknownOutcome().retry_after, str(UnknownOutcome())) == (None, "")


def test_every_code_that_is_raised_stands_in_the_table() -> None:
    """Whichever class says it."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, QueuebellError)]
    assert len(kinds) > 15
    for kind in kinds:
        assert kind.code in errors.STATUS_BY_CODE


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a/b/c", "a/b/c"),
        ("X/Y/Z", "X/Y/Z"),
        ("http://ann:secret@host/q?sig=x#y;z@w?v", "w"),
        ("host/q?sig=x", "host/q"),
        ("host/q#part", "host/q"),
        ("host/q;part", "host/q"),
        ("a\n\x1b", "a\\n\\x1b"),
        ("x" * errors.GIVEN_SHOWN, "x" * errors.GIVEN_SHOWN),
        ("x" * (errors.GIVEN_SHOWN + 1), "x" * errors.GIVEN_SHOWN + "..."),
    ],
)
def test_a_wrong_name_is_repeated_cut_and_without_a_password(given: str, shown: str) -> None:
    """In a note, in characters that can be printed."""
    assert BadQueueReference("is none", given).__notes__ == [f"given: '{shown}'"]


def test_a_name_that_is_none_is_repeated_wherever_it_was_given() -> None:
    """As a reference, as a partitioned one, and as the name of partitions."""
    for read in (parse_reference, parse_partitions, lambda given: Partitions(given, 2)):
        with pytest.raises(BadQueueReference) as refused:
            read("no reference")
        assert refused.value.__notes__ == ["given: 'no reference'"]


@pytest.mark.parametrize("code", ["unauthenticated", "forbidden"])
def test_who_is_not_allowed_is_told_by_the_bridges_own_code(code: str) -> None:
    """And in its words: whether a key is not known or grants too little."""
    error = NotAllowed(code, "'put' is not granted on a/y")
    assert (error.code, str(error)) == (code, "'put' is not granted on a/y")
