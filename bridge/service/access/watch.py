"""What the access file says now: read again as soon as it changes, and told to whatever is open by its leave."""

from __future__ import annotations

import hashlib
import logging
import os
import pathlib
import time
from collections.abc import Callable, Iterable

from bridge.contract.errors import ConfigurationError
from bridge.core.grants import Verb
from bridge.core.keys import Access, Identity
from bridge.service.access import access_file
from bridge.service.looking import Looking, stamp_of

log = logging.getLogger("queuebell.access")


class Leave:
    """Something open that lasts as long as somebody may do what it does, a session say."""

    __slots__ = ("_watch", "end", "identity", "queues", "verb")

    def __init__(self, watch: AccessWatch, identity: Identity, verb: Verb, end: Callable[[], None]) -> None:
        self._watch = watch
        self.identity = identity
        self.verb = verb
        self.end = end
        self.queues: frozenset[str] = frozenset()
        """Those that it is about by now."""

    def refused(self, queues: Iterable[str]) -> str | None:
        """Take ``queues`` for what it is about from now on, or return the first that is not granted."""
        wanted = frozenset(queues)
        for queue in wanted:
            if not self.identity.principal.may(self.verb, queue):
                return queue
        self.queues = wanted
        return None

    def instance(self, given: str) -> str:
        """Return what an instance is called here: nobody takes over the session of another principal by its name."""
        return hashlib.sha256(f"{self.identity.principal.name}/{given}".encode()).hexdigest()[:32]

    def close(self) -> None:
        """Say that it has ended by itself; may be called twice."""
        self._watch.leaves.pop(self, None)


class AccessWatch(Looking):
    """An access file and what is open by its leave; an async context manager.

    A file that cannot be used any more changes nothing: what it said last holds, and the log says so once for each
    change. Raises `ConfigurationError` when made where it cannot be used from the beginning.
    """

    def __init__(self, path: str | os.PathLike[str], *, wall: Callable[[], float] = time.time) -> None:
        self.path = pathlib.Path(path)
        self._wall = wall
        self._seen = stamp_of(self.path)
        self._access = Access(access_file.read(self.path))
        self.leaves: dict[Leave, None] = {}
        self.trouble: str | None = None
        """Why the file as it stands cannot be used, None while it can."""

    def identify(self, secret: str) -> Identity | None:
        """Return who a secret proves somebody to be now, None where it proves nothing."""
        return self._access.identify(secret, self._wall())

    def leave(self, identity: Identity, verb: Verb, end: Callable[[], None]) -> Leave:
        """Have ``end`` called once its holder may not do that any more, within a second."""
        given = Leave(self, identity, verb, end)
        self.leaves[given] = None
        return given

    def look(self) -> None:
        """Read the file where it has changed, and end what is not granted any more or has expired."""
        stamp = stamp_of(self.path)
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._access = Access(access_file.read(self.path))
            except ConfigurationError as error:
                self.trouble = str(error)
                log.error("%s; what it said before holds until it can be read", error)
            else:
                self.trouble = None
                log.info("access list read again", extra={"keys": len(self._access)})
        self._end_what_is_over()

    def _end_what_is_over(self) -> None:
        now = self._wall()
        for given in list(self.leaves):
            again = self._access.again(given.identity, now)
            if again is not None:
                given.identity = again
                if given.refused(given.queues) is None and again.principal.may(given.verb):
                    continue
            self.leaves.pop(given, None)
            given.end()
