"""API keys: made of chance, kept as a hash, ended by a date or by being taken off the list."""

from __future__ import annotations

import hashlib
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import ConfigurationError
from bridge.core.grants import Verb
from bridge.core.keys import Access, AccessList, Key, new_key, without
from bridge.core.limits import NO_LIMITS, Limits
from tests.support.access import NOW, listed, secret_of

LISTED, SECRETS = listed({"worker": {"take": ["a/*"]}, "producer": {"put": ["a/x"]}})


def test_a_secret_names_its_principal_and_no_other() -> None:
    """What is kept is the hash of the whole secret; the list holds no secret."""
    access = Access(LISTED)
    assert len(access) == 2
    for name, secret in SECRETS.items():
        assert secret.startswith("qb_")
        assert len(secret) == 67
        identity = access.identify(secret, NOW)
        assert identity is not None
        assert identity.principal.name == name
        assert identity.key == hashlib.sha256(secret.encode()).hexdigest()
        assert access.again(identity, NOW) == identity
        assert secret.encode() not in msgspec.json.encode(LISTED)
    worker = access.identify(SECRETS["worker"], NOW)
    assert worker is not None
    assert worker.principal.may(Verb.TAKE, "a/y")
    assert not worker.principal.may(Verb.PUT, "a/x")


@given(st.text() | st.sampled_from(["qb_" + "f" * 64, *(each.upper() for each in SECRETS.values())]))
def test_nothing_else_is_a_key(secret: str) -> None:
    """Any other text proves nothing, whatever its form."""
    assert (Access(LISTED).identify(secret, NOW) is None) is (secret not in SECRETS.values())


@pytest.mark.parametrize("change", ["{}\n", " {}", "{} ", "{}0", "x{}"])
def test_nearly_a_key_is_none(change: str) -> None:
    """One character more is another secret, a line break too."""
    assert Access(LISTED).identify(change.format(SECRETS["worker"]), NOW) is None


def test_a_key_expires_at_its_moment() -> None:
    """Until then it is one, from then on it is none, also for what was opened with it."""
    found, secrets = listed({"p": {"look": ["*"]}}, expires_at=NOW + 10)
    access = Access(found)
    before = access.identify(secrets["p"], NOW + 9.999)
    assert before is not None
    assert access.identify(secrets["p"], NOW + 10) is None
    assert access.again(before, NOW + 10) is None
    assert access.again(before, NOW + 9) == before


def test_a_second_key_of_a_principal_leaves_its_grants() -> None:
    """Keys are rotated: make one, give it out, revoke the old one by its id."""
    made, second = new_key(LISTED, "worker", {}, chance=secret_of(9), now=NOW)
    assert made.principals == LISTED.principals
    assert [key.principal for key in made.keys] == ["worker", "producer", "worker"]
    old = made.keys[0].id
    assert len(old) == 12
    left, gone = without(made, old)
    assert gone == [(old, "worker")]
    access = Access(left)
    assert access.identify(SECRETS["worker"], NOW) is None
    found = access.identify(second, NOW)
    assert found is not None
    assert found.principal.name == "worker"


def test_new_grants_replace_the_old_ones() -> None:
    """What a principal may is said whole; its other keys have the new grants too."""
    made, _ = new_key(LISTED, "worker", {"look": ["b/x"]}, chance=secret_of(9), now=NOW)
    assert made.principals["worker"] == {"look": ["b/x"]}
    identity = Access(made).identify(SECRETS["worker"], NOW)
    assert identity is not None
    assert [identity.principal.may(verb, "b/x") for verb in (Verb.LOOK, Verb.TAKE)] == [True, False]
    assert not identity.principal.may(Verb.TAKE, "a/x")


def test_revoking_by_name_ends_all_keys() -> None:
    """And a name that nobody has is refused: a typo must not look like a revocation."""
    made, _ = new_key(LISTED, "worker", {}, chance=secret_of(9), now=NOW)
    left, gone = without(made, "worker")
    assert len(gone) == 2
    assert [key.principal for key in left.keys] == ["producer"]
    for nobody in ("wroker", "", made.keys[0].sha256):
        with pytest.raises(ConfigurationError, match="no key has the id"):
            without(made, nobody)


def test_a_key_that_could_do_nothing_is_not_made() -> None:
    """Nor one with grants that are wrong; the list stays as it is."""
    with pytest.raises(ConfigurationError, match="nothing is granted to it yet"):
        new_key(LISTED, "new", {}, chance=secret_of(9), now=NOW)
    with pytest.raises(ConfigurationError, match="no verb is called"):
        new_key(LISTED, "new", {"receive": ["*"]}, chance=secret_of(9), now=NOW)
    with pytest.raises(ConfigurationError, match="twice"):
        new_key(LISTED, "worker", {}, chance=secret_of(0), now=NOW)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "this release reads version 1"),
        ({"principals": {}}, "is for 'worker', and no principal is called so"),
        ({"keys": [Key(principal="worker", sha256="A" * 64, created_at=0.0)]}, "64 small hexadecimal digits"),
        ({"keys": [Key(principal="worker", sha256="a" * 63, created_at=0.0)]}, "64 small hexadecimal digits"),
        ({"keys": [LISTED.keys[0], LISTED.keys[0]]}, "stands there twice"),
        ({"principals": {"worker": {"fly": ["*"]}, "producer": {}}}, "no verb is called 'fly'"),
        ({"limits": {"wroker": Limits(queues=1)}}, "^limits: they are for 'wroker'"),
        ({"certificates": {"wroker": ["DNS:x"]}}, "^certificates: they are for 'wroker'"),
    ],
)
def test_a_list_that_is_wrong_is_refused_whole(change: dict[str, object], why: str) -> None:
    """Half a list would be a list of other grants."""
    with pytest.raises(ConfigurationError, match=why):
        Access(msgspec.structs.replace(LISTED, **change))


def test_a_principal_has_the_limits_of_its_name() -> None:
    """And who has none there has none; whoever it is that shows a key, a token or a certificate of it."""
    few = Limits(requests_per_second=1.0)
    access = Access(msgspec.structs.replace(LISTED, limits={"worker": few}))
    limits = {name: found.limits if (found := access.principal(name)) else None for name in ("worker", "producer", "x")}
    assert limits == {"worker": few, "producer": NO_LIMITS, "x": None}
    by_key, by_token = access.identify(SECRETS["worker"], NOW), access.named("worker", NOW + 1, NOW)
    assert by_key is not None
    assert by_token is not None
    assert by_key.principal is by_token.principal is access.principal("worker")


def test_the_empty_list_lets_nobody_in() -> None:
    """Which is what a new file means."""
    access = Access(AccessList())
    assert len(access) == 0
    assert access.identify(SECRETS["worker"], NOW) is None


def test_somebody_whom_a_token_names() -> None:
    """As the list knows them, until the token ends; nobody where the list names nobody so."""
    access = Access(LISTED)
    found = access.named("producer", NOW + 5, NOW)
    assert found is not None
    assert (found.principal.name, found.key, found.until) == ("producer", None, NOW + 5)
    assert found.principal.may(Verb.PUT, "a/x")
    assert access.named("nobody", NOW + 5, NOW) is None
    assert access.named("producer", NOW, NOW) is None
    assert access.named("producer", NOW, NOW - 0.001) is not None


def test_the_same_somebody_of_another_list() -> None:
    """By a token as by a key: with the grants of the list that is asked, and until the same end."""
    found = Access(LISTED).named("producer", NOW + 5, NOW)
    assert found is not None
    less, _ = new_key(LISTED, "producer", {"look": ["*"]}, chance=secret_of(9), now=NOW)
    again = Access(less).again(found, NOW + 1)
    assert again is not None
    assert (again.key, again.until) == (None, NOW + 5)
    assert [again.principal.may(verb, "a/x") for verb in (Verb.PUT, Verb.LOOK)] == [False, True]
    assert Access(less).again(found, NOW + 5) is None
    assert Access(AccessList()).again(found, NOW) is None


def test_until_when_a_key_holds() -> None:
    """For ever, or until it expires: who keeps something open for it asks again then."""
    never = Access(LISTED).identify(SECRETS["worker"], NOW)
    found, secrets = listed({"p": {"look": ["*"]}}, expires_at=NOW + 10)
    once = Access(found).identify(secrets["p"], NOW)
    assert never is not None
    assert once is not None
    assert (never.until, once.until) == (math.inf, NOW + 10)
    assert once.key == found.keys[0].sha256
    again = Access(found).again(once, NOW + 1)
    assert again is not None
    assert (again.key, again.until) == (once.key, once.until)


def test_the_moment_of_a_key_is_kept() -> None:
    """When it was made and when it ends, for those who look after it."""
    found, _ = listed({"p": {"look": ["*"]}}, expires_at=NOW + 10)
    assert [(key.created_at, key.expires_at) for key in found.keys] == [(NOW, NOW + 10)]
