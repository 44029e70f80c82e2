"""Translate an access list into the equivalent permissions at a broker; pure.

A broker carries triggers (`Verb.RING`), sessions (`Verb.TAKE`) and wakes (`Verb.LOOK`), and nothing of the other verbs.
The bridge itself checks the queues of a session, by the key in its hello.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from queuebell.bridge.access.grants import EVERY, Principal, Verb
from queuebell.bridge.access.keys import AccessList
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.contract.partitioning import Partitions, parse_queue

ANY: Final = "*"
"""Wildcard for one token of a topic."""
BRIDGE_USER: Final = "queuebell-bridge"
"""The bridge's own user at a broker."""

Topic = tuple[str, ...]


class BrokerUser(msgspec.Struct, frozen=True):
    """A user of a broker, and its permitted topics."""

    name: str
    publish: tuple[Topic, ...]
    subscribe: tuple[Topic, ...]


def broker_users(listed: AccessList, prefix: str, *, cluster: bool = False) -> list[BrokerUser]:
    """Return the bridge's own user, and one for each principal with permissions at a broker.

    With ``cluster``, the bridge's user alone may use the cluster topics, as members trust every message there.

    Raises `ConfigurationError` for invalid grants, and for a principal with the name of the bridge's user.
    """
    session, echo = (prefix, "session", ANY), (prefix, "echo", ANY)
    cluster_topics: tuple[Topic, ...] = ((prefix, "cluster", ANY),) if cluster else ()
    users = [
        BrokerUser(
            BRIDGE_USER,
            ((*session, "down"), (prefix, "wake", ANY, ANY), (prefix, "trigger", ANY, ANY), *cluster_topics, echo),
            ((prefix, "hello"), (*session, "up"), (prefix, "trigger", ANY, ANY), *cluster_topics, echo),
        )
    ]
    for name, grants in sorted(listed.principals.items()):
        if name == BRIDGE_USER:
            raise ConfigurationError(
                f"{name}: the bridge uses this name itself at a broker; give this principal another name"
            )
        principal = Principal(name, grants)
        publish = list(_topics(prefix, "trigger", principal, Verb.RING))
        subscribe = list(_topics(prefix, "wake", principal, Verb.LOOK))
        if principal.may(Verb.TAKE):
            publish += [(prefix, "hello"), (*session, "up")]
            subscribe.append((*session, "down"))
        if publish or subscribe:
            # Clients test a connection with an echo to themselves, whose payload is random each time.
            users.append(BrokerUser(name, (*publish, echo), (*subscribe, echo)))
    return users


def _topics(prefix: str, kind: str, principal: Principal, verb: Verb) -> Iterator[Topic]:
    """Yield the topics of a verb's patterns, except those that a wider pattern covers."""
    tokens = dict.fromkeys(pair for pattern in principal.reach(verb).patterns for pair in _tokens(pattern))
    for account, queue in tokens:
        wider = {(ANY, ANY), (account, ANY)} - {(account, queue)}
        if not wider & tokens.keys():
            yield prefix, kind, account, queue


def _tokens(pattern: str) -> Iterable[tuple[str, str]]:
    if pattern == EVERY:
        return [(ANY, ANY)]
    account, queue = split_reference(pattern)
    if queue == EVERY:
        return [(account, ANY)]
    named = parse_queue(pattern)
    references = named.references if isinstance(named, Partitions) else (named,)
    return map(split_reference, references)
