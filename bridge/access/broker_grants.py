"""What a broker's own access list has to say, so that it grants what an access list of ours does; pure.

Over a broker there are triggers (`Verb.RING`), sessions (`Verb.TAKE`) and wakes (`Verb.LOOK`), and nothing of the other
verbs. Which queues a session is about the bridge decides itself, by the key in its hello.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from bridge.access.grants import EVERY, Principal, Verb
from bridge.access.keys import AccessList
from bridge.contract.errors import ConfigurationError
from bridge.contract.names import split_reference
from bridge.contract.partitioning import Partitions, parse_queue

ANY: Final = "*"
"""One token of a topic, whatever it is."""
BRIDGE_USER: Final = "queuebell-bridge"
"""The bridge's own user at a broker."""

Topic = tuple[str, ...]


class BrokerUser(msgspec.Struct, frozen=True):
    """One user of a broker, and the topics it may speak and listen on."""

    name: str
    publish: tuple[Topic, ...]
    subscribe: tuple[Topic, ...]


def broker_users(listed: AccessList, prefix: str, *, cluster: bool = False) -> list[BrokerUser]:
    """Return the bridge's own user, and one for each principal that has something to do at a broker.

    With ``cluster`` the bridge may speak with others that take turns with it; what is said there is believed, so that
    nobody else may.

    Raises `ConfigurationError` for grants that are wrong, and for a principal that is called as the bridge's user.
    """
    session, echo = (prefix, "session", ANY), (prefix, "echo", ANY)
    words: tuple[Topic, ...] = ((prefix, "cluster", ANY),) if cluster else ()
    users = [
        BrokerUser(
            BRIDGE_USER,
            ((*session, "down"), (prefix, "wake", ANY, ANY), (prefix, "trigger", ANY, ANY), *words, echo),
            ((prefix, "hello"), (*session, "up"), (prefix, "trigger", ANY, ANY), *words, echo),
        )
    ]
    for name, grants in sorted(listed.principals.items()):
        if name == BRIDGE_USER:
            raise ConfigurationError(
                f"{name}: the bridge itself is called so at a broker; call this principal otherwise"
            )
        principal = Principal(name, grants)
        publish = list(_topics(prefix, "trigger", principal, Verb.RING))
        subscribe = list(_topics(prefix, "wake", principal, Verb.LOOK))
        if principal.may(Verb.TAKE):
            publish += [(prefix, "hello"), (*session, "up")]
            subscribe.append((*session, "down"))
        if publish or subscribe:
            # A message to oneself proves a connection; what it says is drawn anew each time.
            users.append(BrokerUser(name, (*publish, echo), (*subscribe, echo)))
    return users


def _topics(prefix: str, kind: str, principal: Principal, verb: Verb) -> Iterator[Topic]:
    """Yield what the patterns of a verb cover, without what another one of them covers as well."""
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
