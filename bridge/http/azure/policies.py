"""Stored access policies of a queue: times and permissions that signatures refer to by name, so as to be taken back."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec

from bridge.http.azure import xml_in, xml_out
from bridge.http.azure.errors import AzureError
from bridge.http.azure.moments import read_iso, write_iso

POLICIES_MAX = 5
ID_MAX = 64
LETTERS = "raup"


class Policy(msgspec.Struct, frozen=True):
    """One policy; what it leaves open, the signature has to say."""

    id: str
    start: datetime.datetime | None = None
    expiry: datetime.datetime | None = None
    permissions: str | None = None
    """Letters of ``raup``: read, add, update, process."""


def parse(raw: bytes) -> tuple[Policy, ...]:
    """Read the body of Set Queue ACL; an empty one holds none.

    Raises `AzureError`: ``InvalidXmlDocument``, ``MissingRequiredXmlNode``, ``UnsupportedXmlNode`` or
    ``InvalidXmlNodeValue``.
    """
    if not raw.strip():
        return ()
    root = xml_in.parse(raw)
    if root.name != "SignedIdentifiers" or len(root.children) > POLICIES_MAX:
        raise AzureError("InvalidXmlDocument")
    found = tuple(_policy(each) for each in root.children)
    if len({policy.id for policy in found}) < len(found):
        raise xml_in.wrong("Id")
    return found


def render(policies: Sequence[Policy]) -> bytes:
    """Write the answer to Get Queue ACL."""
    parts = [xml_out.DECLARATION, "<SignedIdentifiers>"]
    for policy in policies:
        parts.append(f"<SignedIdentifier><Id>{xml_out.escape(policy.id)}</Id><AccessPolicy>")
        if policy.start is not None:
            parts.append(f"<Start>{write_iso(policy.start)}</Start>")
        if policy.expiry is not None:
            parts.append(f"<Expiry>{write_iso(policy.expiry)}</Expiry>")
        if policy.permissions is not None:
            parts.append(f"<Permission>{policy.permissions}</Permission>")
        parts.append("</AccessPolicy></SignedIdentifier>")
    parts.append("</SignedIdentifiers>")
    return "".join(parts).encode()


def _policy(element: xml_in.Element) -> Policy:
    if element.name != "SignedIdentifier":
        raise AzureError("UnsupportedXmlNode", details={"XmlNodeName": element.name})
    id_ = element.required("Id")
    if not 1 <= len(id_.text) <= ID_MAX:
        raise xml_in.wrong("Id")
    given = element.child("AccessPolicy")
    if given is None:
        return Policy(id_.text)
    letters = given.child("Permission")
    permissions = letters.text.strip() if letters is not None else ""
    if set(permissions) - set(LETTERS):
        raise xml_in.wrong("Permission")
    # In one order, whatever order they came in: clients compare.
    ordered = "".join(letter for letter in LETTERS if letter in permissions)
    return Policy(id_.text, _moment(given, "Start"), _moment(given, "Expiry"), ordered or None)


def _moment(policy: xml_in.Element, name: str) -> datetime.datetime | None:
    element = policy.child(name)
    text = element.text.strip() if element is not None else ""
    if not text:
        return None
    moment = read_iso(text)
    if moment is None:
        raise xml_in.wrong(name)
    return moment
