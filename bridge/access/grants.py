"""Define grants: the verbs that each principal has, and the queues that they cover; pure.

A principal is an authenticated producer, worker or person. Each verb has patterns of queues. **Anything not granted is
forbidden**, and no grant restricts another.
"""

from __future__ import annotations

import enum
import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from queuebell.bridge.access.limits import NO_LIMITS, Limits
from queuebell.bridge.contract.errors import BadInput, ConfigurationError
from queuebell.bridge.contract.names import POISON_SUFFIX, TOKEN, split_reference
from queuebell.bridge.contract.partitioning import Partitions, parse_queue

NAME_FORM: Final = "a principal's name is 1 to 80 letters, digits, '_' and '-', and begins with a letter or digit"
EVERY: Final = "*"

_name = re.compile(TOKEN).fullmatch
_account = re.compile(f"({TOKEN})/[*]").fullmatch


class Verb(enum.Enum):
    """The verbs that can be granted; they apply to all endpoints."""

    RING = "ring"
    """Publish triggers."""
    PUT = "put"
    """Put messages."""
    TAKE = "take"
    """Receive and settle, hold sessions, and dead-letter to the poison queue of a queue."""
    LOOK = "look"
    """Peek, read depth, state and explanations, and subscribe to wakes."""
    MANAGE = "manage"
    """Create, delete, clear, pause and resume queues."""
    OPERATE = "operate"
    """Read metrics, findings and listeners, and forget queues. It concerns the bridge, so its pattern is ``*``."""


class Reach:
    """The queues covered by patterns: ``*``, ``account/*``, ``account/queue`` or ``account/queue:count``.

    The last covers each physical queue of a partitioned queue. Raises `ConfigurationError` for any other pattern.
    """

    __slots__ = ("_accounts", "_order", "_poison", "_queues", "every", "patterns")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self.every = False
        """Whether it covers every queue."""
        self._order: list[str] | None = None
        self._accounts: set[str] = set()
        self._queues: set[str] = set()
        self._poison: set[str] = set()
        for pattern in self.patterns:
            self._add(pattern)

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def __or__(self, other: Reach) -> Reach:
        """Return the union."""
        return Reach((*self.patterns, *other.patterns))

    def covers(self, queue: str) -> bool:
        """Return whether it covers a queue, given as a checked reference."""
        return self.every or queue in self._queues or split_reference(queue)[0] in self._accounts

    def buries_in(self, queue: str) -> bool:
        """Return whether a queue is the poison queue of a covered one."""
        if not queue.endswith(POISON_SUFFIX):
            return False
        return self.every or queue in self._poison or split_reference(queue)[0] in self._accounts

    def stretches(self, prefix: str, after: str) -> Iterator[tuple[str, bool]]:
        """Yield, in ascending order, ranges of the covered queues that begin with ``prefix`` and follow ``after``.

        Each is a prefix whose names are all covered, or, with True, the name of one queue, which may not exist.
        """
        if self.every:
            yield prefix, False
            return
        if self._order is None:
            names = (queue for queue in self._queues if split_reference(queue)[0] not in self._accounts)
            self._order = sorted([*(f"{account}/" for account in self._accounts), *names])
        # Start one earlier: ``after`` may be within that account.
        first = max(0, bisect_right(self._order, max(prefix, after)) - 1)
        for place in itertools.islice(self._order, first, None):
            account = place.endswith("/")
            if place > prefix and not place.startswith(prefix):
                return
            if account and (place.startswith(prefix) or prefix.startswith(place)):
                if place > after or after.startswith(place):
                    yield max(place, prefix), False
            elif place > after and place.startswith(prefix):
                yield place, True

    def _add(self, pattern: str) -> None:
        if pattern == EVERY:
            self.every = True
            return
        if match := _account(pattern):
            self._accounts.add(match[1])
            return
        try:
            named = parse_queue(pattern)
            queues = named.references if isinstance(named, Partitions) else (named,)
            self._queues.update(queues)
            self._poison.update(queue + POISON_SUFFIX for queue in queues)
            if isinstance(named, Partitions):
                self._poison.add(named.poison)
        except BadInput as error:
            raise ConfigurationError(
                f"a pattern is '*', 'account/*', 'account/queue' or 'account/queue:PARTITIONS': {error}"
            ) from None


EVERYTHING: Final = Reach([EVERY])


class Principal:
    """An authenticated client and its grants.

    ``grants`` has patterns by verb name. Raises `ConfigurationError` for invalid ones.
    """

    __slots__ = ("_reach", "limits", "name")

    def __init__(self, name: str, grants: Mapping[str, Iterable[str]], limits: Limits = NO_LIMITS) -> None:
        if _name(name) is None:
            raise ConfigurationError(NAME_FORM)
        self.name = name
        self.limits = limits
        self._reach = {verb: Reach() for verb in Verb}
        for word, patterns in grants.items():
            verb = verb_of(word)
            if isinstance(patterns, str):
                raise ConfigurationError(f"{name}: {word}: must be a list of patterns, such as [{patterns!r}]")
            try:
                reach = self._reach[verb] = Reach(patterns)
            except ConfigurationError as error:
                raise ConfigurationError(f"{name}: {word}: {error}") from None
            if verb is Verb.OPERATE and any(pattern != EVERY for pattern in reach.patterns):
                raise ConfigurationError(
                    f"{name}: operate applies to the bridge, not to queues: its pattern must be '*'"
                )

    def __repr__(self) -> str:
        return f"Principal({self.name})"

    def reach(self, verb: Verb) -> Reach:
        """Return the queues that a verb is granted on."""
        return self._reach[verb]

    def may(self, verb: Verb, queue: str = "") -> bool:
        """Return whether a verb is granted on a queue, or, without one, on any queue.

        Permission to take from a queue includes putting to its poison queue: otherwise a worker would lose failing
        messages or retry them forever.
        """
        reach = self._reach[verb]
        if not queue:
            return bool(reach)
        return reach.covers(queue) or (verb is Verb.PUT and self._reach[Verb.TAKE].buries_in(queue))


def verb_of(word: str) -> Verb:
    """Return the verb with a name; raises `ConfigurationError` that lists all of them."""
    try:
        return Verb(word)
    except ValueError:
        raise ConfigurationError(
            f"unknown verb {word!r}; the verbs are {', '.join(verb.value for verb in Verb)}"
        ) from None
