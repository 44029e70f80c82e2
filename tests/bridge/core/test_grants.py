"""Who may do what with which queues: each verb on each pattern, and what is refused (S37)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import ConfigurationError
from bridge.core.grants import Principal, Reach, Verb, verb_of

QUEUES = ["a/x", "a/x-poison", "a/y", "b/x", "a/x-p0", "a/x-p1", "a/x-p2", "a/x-p0-poison", "ab/x", "a/xy"]
PATTERNS = {
    "*": set(QUEUES),
    "a/*": {"a/x", "a/x-poison", "a/y", "a/x-p0", "a/x-p1", "a/x-p2", "a/x-p0-poison", "a/xy"},
    "a/x": {"a/x"},
    "b/x": {"b/x"},
}
BURIED = {
    "*": {"a/x-poison", "a/x-p0-poison"},
    "a/*": {"a/x-poison", "a/x-p0-poison"},
    "a/x": {"a/x-poison"},
    "b/x": set(),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_a_pattern_covers(pattern: str) -> None:
    """The whole table: a pattern is all, an account, or one queue, and never a beginning of a name."""
    reach = Reach([pattern])
    assert {queue for queue in QUEUES if reach.covers(queue)} == PATTERNS[pattern]
    assert {queue for queue in QUEUES if reach.buries_in(queue)} == BURIED[pattern]
    assert reach.every is (pattern == "*")
    assert bool(reach)


def test_a_partitioned_queue_is_its_physical_ones() -> None:
    """Each partition and no more of them; what cannot be handled goes to the poison queue of the logical name."""
    reach = Reach(["abc/xyz:2"])
    ends = ("", "-p0", "-p1", "-p2", "-poison")
    assert [reach.covers(f"abc/xyz{end}") for end in ends] == [False, True, True, False, False]
    assert [reach.buries_in(f"abc/xyz{end}-poison") for end in ("", "-p0", "-p1", "-p2")] == [True, True, True, False]
    assert not reach.buries_in("abc/xyz-p0")


@pytest.mark.parametrize(("verb", "granted"), list(itertools.product(Verb, Verb)))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_nothing_is_allowed_that_is_not_granted(verb: Verb, granted: Verb, pattern: str) -> None:
    """Every verb asked of a principal that has one verb, on every queue."""
    if granted is Verb.OPERATE and pattern != "*":
        with pytest.raises(ConfigurationError, match="operate is about the bridge"):
            Principal("p", {granted.value: [pattern]})
        return
    principal = Principal("p", {granted.value: [pattern]})
    for queue in QUEUES:
        allowed = verb is granted and queue in PATTERNS[pattern]
        buries = verb is Verb.PUT and granted is Verb.TAKE and queue in BURIED[pattern]
        assert principal.may(verb, queue) is (allowed or buries), (verb, granted, queue)
    assert principal.may(verb) is (verb is granted)
    assert principal.reach(granted).patterns == (pattern,)


@given(st.lists(st.sampled_from(list(PATTERNS)), max_size=4), st.sampled_from(QUEUES))
def test_patterns_add_up_and_none_takes_away(patterns: list[str], queue: str) -> None:
    """Several patterns cover what any of them covers."""
    assert Reach(patterns).covers(queue) is any(queue in PATTERNS[pattern] for pattern in patterns)
    assert bool(Reach(patterns)) is bool(patterns)


@pytest.mark.parametrize(
    "pattern", ["", "a", "*/x", "a/**", "a/x*", "**", "a/*/b", "a/x/y", "/x", "a/", " a/x", "a/x:0", "a/x:101", "é/x"]
)
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    """A typo never grants more than was meant: it grants nothing and says so."""
    with pytest.raises(ConfigurationError, match=r"take: a pattern is '\*', 'account/\*', 'account/queue' or"):
        Principal("p", {"take": [pattern]})


def test_other_typos() -> None:
    """A verb that is none names all there are; one text is no list; a name has a form."""
    with pytest.raises(ConfigurationError, match="no verb is called 'puts': ring, put, take, look, manage, operate"):
        verb_of("puts")
    with pytest.raises(ConfigurationError, match="no verb"):
        Principal("p", {"PUT": ["*"]})
    with pytest.raises(ConfigurationError, match=r"p: put: a list of patterns, as \['a/x'\]"):
        Principal("p", {"put": "a/x"})
    for name in ("", "a b", "-a", "a" * 81, "a\n", "ä"):
        with pytest.raises(ConfigurationError, match="a principal's name is 1 to 80"):
            Principal(name, {})
    assert repr(Principal("a" * 80, {})) == f"Principal({'a' * 80})"
    assert not Principal("p", {}).may(Verb.LOOK)
    assert not Principal("p", {"look": []}).may(Verb.LOOK)


names = st.sampled_from(
    [f"{account}/{queue}" for account in ("a", "a-", "ab", "b") for queue in ("xyz", "xyz-p0", "y")]
)


@given(
    st.lists(names | st.sampled_from(["a/*", "ab/*", "a-/*", "a/xyz:2", "*"]), max_size=5),
    st.sampled_from(["", "a", "a/", "a/x", "a/xyz-", "ab/y", "b/", "c"]),
    st.just("") | names | st.sampled_from(["a", "a/xx", "zz"]),
    st.sets(names),
)
def test_stretches_hold_what_is_covered(patterns: list[str], prefix: str, after: str, there: set[str]) -> None:
    """Each queue once, in order; and no queue in them that is not covered."""
    reach = Reach(patterns)
    met: list[str] = []
    for stretch, exact in reach.stretches(prefix, after):
        found = {each for each in there if (each == stretch if exact else each.startswith(stretch) and each > after)}
        met += sorted(found)
    assert met == sorted(each for each in there if reach.covers(each) and each.startswith(prefix) and each > after)
