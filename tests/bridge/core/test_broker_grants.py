"""What brokers are told is what the access list grants: no topic more, none less, for any list."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.contract.errors import ConfigurationError
from bridge.core.broker_grants import ANY, BRIDGE_USER, BrokerUser, Topic, broker_users
from bridge.core.grants import Principal, Verb
from bridge.core.keys import AccessList

PATTERNS = ["*", "a/*", "b/*", "a/orders", "a/x", "b/x", "a/orders:2", "b/boxes:3"]
QUEUES = ["a/orders", "a/x", "b/x", "b/y", "c/x", "a/orders-p0", "a/orders-p1", "a/orders-p2", "b/boxes-p2"]
grants = st.dictionaries(
    st.sampled_from([verb.value for verb in Verb if verb is not Verb.OPERATE]),
    st.lists(st.sampled_from(PATTERNS), max_size=4),
)


def covered(granted: tuple[Topic, ...], topic: Topic) -> int:
    """By how many of the topics that are granted this one is covered."""
    return sum(
        len(each) == len(topic) and all(a in (ANY, b) for a, b in zip(each, topic, strict=True)) for each in granted
    )


@given(grants)
@example({"ring": ["a/orders:2", "a/*"], "look": ["*", "a/x"]})
def test_a_topic_is_granted_where_the_verb_is(given_grants: dict[str, list[str]]) -> None:
    """Once each; who has nothing to do at a broker has no user there."""
    principal = Principal("one", given_grants)
    users = {user.name: user for user in broker_users(AccessList(principals={"one": given_grants}), "site7")}
    user = users.get("one", BrokerUser("one", (), ()))
    for granted in (user.publish, user.subscribe):
        assert covered(granted, ("site7", "echo", "1" * 32)) == ("one" in users)
    takes = principal.may(Verb.TAKE)
    for queue in QUEUES:
        names = tuple(queue.split("/"))
        assert covered(user.publish, ("site7", "trigger", *names)) == principal.may(Verb.RING, queue)
        assert covered(user.subscribe, ("site7", "wake", *names)) == principal.may(Verb.LOOK, queue)
        assert not covered(user.publish, ("site7", "wake", *names))
        assert not covered(user.subscribe, ("site7", "trigger", *names))
    for frame, spoken, heard in (
        (("site7", "hello"), takes, False),
        (("site7", "session", "1" * 32, "up"), takes, False),
        (("site7", "session", "1" * 32, "down"), False, takes),
    ):
        assert covered(user.publish, frame) == spoken
        assert covered(user.subscribe, frame) == heard
    assert ("one" in users) is any(principal.may(verb) for verb in (Verb.RING, Verb.TAKE, Verb.LOOK))


def test_the_bridge_hears_what_it_serves_and_no_more() -> None:
    """It is the first user, whoever else there is; no principal may be called so."""
    (bridge,) = broker_users(AccessList(), "q")
    assert bridge.name == BRIDGE_USER == "queuebell-bridge"
    ring, echo = ("q", "trigger", ANY, ANY), ("q", "echo", ANY)
    assert set(bridge.publish) == {("q", "session", ANY, "down"), ("q", "wake", ANY, ANY), ring, echo}
    assert set(bridge.subscribe) == {("q", "hello"), ("q", "session", ANY, "up"), ring, echo}
    (member,) = broker_users(AccessList(), "q", cluster=True)
    assert set(member.publish) - set(bridge.publish) == {("q", "cluster", ANY)}
    assert set(member.subscribe) - set(bridge.subscribe) == {("q", "cluster", ANY)}
    with pytest.raises(ConfigurationError, match="call this principal otherwise"):
        broker_users(AccessList(principals={BRIDGE_USER: {"put": ["*"]}}), "q")
