"""Names of certificates: read, compared exactly, and nothing that a stranger could write is taken for another (S34)."""

from __future__ import annotations

import msgspec
import pytest

from queuebell.bridge.access.certificates import Certificate, names_in, san
from queuebell.bridge.access.keys import Access, AccessList, with_terms, without
from queuebell.bridge.contract.errors import ConfigurationError
from tests.support.access import NOW

LISTED = AccessList(
    principals={"worker": {"take": ["a/*"]}, "producer": {"put": ["a/*"]}},
    certificates={"worker": ["DNS:w.internal", "spiffe://x/w"], "producer": ["email:p@x"]},
)


def shown(*names: str, until: float = NOW + 60) -> Certificate:
    """A certificate that was verified."""
    return Certificate(frozenset(names), until)


@pytest.mark.parametrize(
    "text",
    ["", "DNS:", "worker-1", "CN=worker", "dns:w", "DNS:*.internal", "DNS:a b", "DNS:a\n", "IP:127.0.0.1", "DNS:\xe9"],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    """With the form that would be right: a typo must not look like a grant."""
    with pytest.raises(ConfigurationError, match=r"has the form DNS:worker-1\.internal"):
        san(text)
    with pytest.raises(ConfigurationError, match="match exactly"):
        Access(msgspec.structs.replace(LISTED, certificates={"worker": [text]}))


NEAR = [
    "DNS:w.internal\0.evil.example",
    "DNS:w\0.internal",
    "DNS:w.internal ",
    "DNS:W.INTERNAL",
    "DNS:w。internal",
    "DNS:ｗ.internal",
    "DNS:xn--w-internal",
    "DNS:*.internal",
    "DNS:w.*",
    "DNS:w.internal:443",
    "DNS:w.internal,DNS:x",
    "URI:DNS:w.internal",
    "URI://w.internal",
    "URI:SPIFFE://x/w",
    "URI:spiffe://x/%77",
    "URI:spiffe://x/./w",
    "URI:spiffe://X/w",
    "IP Address:127.0.0.1",
    "othername:w.internal",
    "email:p@X",
]


@pytest.mark.parametrize("name", NEAR)
def test_nearly_a_name_is_another_one(name: str) -> None:
    """A NUL, another alphabet, a wildcard, an escape, another kind: each proves nobody to be anybody."""
    kind, _, rest = name.partition(":")
    found = names_in({"subjectAltName": ((kind, rest),)})
    assert Access(LISTED).certified(Certificate(found | {"DNS:harmless"}, NOW + 1), NOW) is None


def test_names_of_two_principals_prove_neither() -> None:
    """Whoever is two is nobody; one name may not stand for two in the list either."""
    assert Access(LISTED).certified(shown("DNS:w.internal", "email:p@x"), NOW) is None
    with pytest.raises(ConfigurationError, match="for two principals"):
        Access(msgspec.structs.replace(LISTED, certificates={"worker": ["DNS:x"], "producer": ["DNS:x"]}))
    with pytest.raises(ConfigurationError, match="'wroker', but there is no principal"):
        Access(msgspec.structs.replace(LISTED, certificates={"wroker": ["DNS:x"]}))


def test_a_name_that_is_revoked_ends_what_it_opened() -> None:
    identity = Access(LISTED).certified(shown("DNS:w.internal"), NOW)
    assert identity is not None
    left, gone = without(LISTED, "DNS:w.internal")
    assert gone == [("DNS:w.internal", "worker")]
    assert left.certificates == {"worker": ["spiffe://x/w"], "producer": ["email:p@x"]}
    assert Access(left).again(identity, NOW) is None
    moved = with_terms(left, "producer", {}, limits={}, certificates=["DNS:w.internal"])
    assert Access(moved).again(identity, NOW) is None
    nobody, gone = without(LISTED, "worker")
    assert [what for what, _ in gone] == ["DNS:w.internal", "spiffe://x/w"]
    assert nobody.certificates == {"producer": ["email:p@x"]}
