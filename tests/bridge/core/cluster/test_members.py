"""C1: what is remembered of others that come, go and are refused, to the moment and to the last of them."""

from __future__ import annotations

from bridge.contract.cluster import Member
from bridge.core.cluster.members import MEMBERS_MAX, SILENT_S, WENT_S, Members, Refused
from tests.support.bells import BOOT
from tests.support.member import FIRST, LAST

AT = 1000.0


def test_of_those_that_were_refused_the_newest_are_remembered_with_where_they_are() -> None:
    """Anybody may say anything: whoever was heard of longest ago is forgotten first."""
    members = Members(BOOT)
    boots = [f"{number:032x}" for number in range(MEMBERS_MAX + 3)]
    for number, boot in enumerate(boots):
        address = "a:8470" if number == MEMBERS_MAX else None
        assert members.refuse(AT, Member(boot=boot, seq=1, address=address), "why")
    assert list(members.refused) == boots[3:]
    told = {boot: (each.address, each.why, each.heard_at) for boot, each in members.refused.items()}
    assert told[boots[MEMBERS_MAX]] == ("a:8470", "why", AT)
    assert told[boots[-1]] == ("", "why", AT)
    assert isinstance(members.refused[boots[-1]], Refused)


def test_a_refusal_lasts_until_nothing_was_heard_for_as_long_as_of_a_member() -> None:
    """C1: at the very moment, and not before."""
    members = Members(BOOT)
    members.refuse(AT, Member(boot=FIRST, seq=1), "why")
    members.refuse(AT + 0.01, Member(boot=LAST, seq=1), "why")
    assert members.gone(AT + SILENT_S - 0.01) == []
    assert list(members.refused) == [FIRST, LAST]
    members.gone(AT + SILENT_S)
    assert list(members.refused) == [LAST]


def test_who_went_is_told_for_so_long_and_no_more_of_them_than_are_kept() -> None:
    """C1."""
    members = Members(BOOT)
    for number in range(300):
        members.hear(AT, Member(boot=f"{number:032x}", seq=1, address="a:8470"))
        assert len(members.gone(AT + SILENT_S)) == 1
    assert len(members.went) == 256
    went_at = AT + SILENT_S
    assert members.flapping(went_at + WENT_S) == {"a:8470": 256}
    assert members.flapping(went_at + WENT_S + 0.01) == {}


def test_another_under_this_boot_counts_as_heard_for_as_long_as_a_member() -> None:
    """C1."""
    members = Members(BOOT)
    assert not members.doubled(AT)
    members.heard_double(AT)
    assert members.doubled(AT + SILENT_S)
    assert not members.doubled(AT + SILENT_S + 0.01)
