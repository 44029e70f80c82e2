"""One bridge of a cluster, with the words of the others said by hand."""

from __future__ import annotations

import itertools
from typing import Final

from queuebell.bridge.contract.cluster import Ability, Able, Asked, Covered, Member, Name
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.core.cluster.coordinator import Coordinator
from queuebell.bridge.core.cluster.members import rank
from queuebell.bridge.observe.facts import Fact
from tests.support.bells import BOOT, QUEUE, Rig

A_S: Final = 2.0


def boot(*, first: bool, queue: str = QUEUE, number: int = 0) -> str:
    """Return the boot of a member that comes before (``first``) or after the rig's in the order of a queue."""
    fitting = (name for at in itertools.count() if (rank(queue, name := f"{at:032x}") > rank(queue, BOOT)) is first)
    return [next(fitting) for _ in range(number + 1)][-1]


FIRST: Final = boot(first=True)
LAST: Final = boot(first=False)


class MemberRig(Rig):
    """Drives the rules of a bridge that takes turns; `words` is what it said."""

    def __init__(
        self, *, alone: bool = False, sweep_s: float = 0.0, name: str | None = None, store: str | None = None,
        webhooks: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(sweep_s=sweep_s)
        self.turns: Coordinator = self.scheduler.join(
            version="1.0", address="here", name=name, store=store, webhooks=webhooks
        )
        self.turns.begin(self.now)
        self._seqs: dict[str, int] = {}
        self._echoed = 0
        if not alone:
            self.wait(0.0)
            self.echo()

    def echo(self) -> None:
        """Have its newest word come back, once."""
        mine = self.says()
        if mine and mine[-1].seq > self._echoed:
            self._echoed = mine[-1].seq
            self.hear(mine[-1])

    def hear(self, word: Member | Able | Covered | Asked) -> None:
        """Have a word come in."""
        self.turns.on_message(self.now, word)
        self.drive()

    def member(
        self, name: str = FIRST, *, full: tuple[str, ...] = (), leaving: bool = False, told: bool = False
    ) -> None:
        """Another says that it is there."""
        self._seqs[name] = self._seqs.get(name, 0) + 1
        self.hear(Member(boot=name, seq=self._seqs[name], version="1.0", full=full, leaving=leaving, told=told))

    def able(
        self, name: str = FIRST, *, room: bool | None = True, queue: str = QUEUE, visibility_ms: int = 30_000,
        store: str | None = None, starts: bool = False,
    ) -> None:  # fmt: skip
        """Another says that it could wake or start somebody; with ``room`` None, that it has no session."""
        ability = None if room is None else Ability(room, visibility_ms, store, starts)
        self.hear(Able(boot=name, seq=self._seqs[name], queues={queue: ability}))

    def peer(self, name: str = FIRST, *, room: bool | None = True, store: str | None = None) -> None:
        """Another is there, and can wake somebody."""
        self.member(name)
        self.able(name, room=room, store=store)

    def trigger_all(self, queue: str = QUEUE, **fields: str | int) -> None:
        """Have a trigger come in that the others hear too."""
        account, name = queue.split("/")
        event = CloudQueueWorkDetected(account, name, **fields)  # type: ignore[arg-type]
        self.scheduler.trigger(self.now, event, "nats", shared=True)
        self.drive()

    def covered(
        self, *ids: Name, name: str = FIRST, begun_age_ms: int | None = 0, seq: int | None = None, since_ms: int = 0,
        queue: str = QUEUE, store: str | None = None, next_ms: int | None = None,
    ) -> None:  # fmt: skip
        """Another tells of an empty receive; ``seq`` is the number of a word of the rig's that it had heard then."""
        heard = {} if seq is None else {BOOT: (seq, since_ms)}
        self.hear(
            Covered(
                boot=name, queue=queue, store=store, begun_age_ms=begun_age_ms, heard=heard, ids=ids,
                next_visible_in_ms=next_ms,
            )
        )  # fmt: skip

    def told(self) -> list[Covered]:
        """Return and forget the covers it told the others of."""
        told = [word for word in self.words if isinstance(word, Covered)]
        self.words = [word for word in self.words if not isinstance(word, Covered)]
        return told

    def says(self) -> list[Member]:
        """Return its words of itself."""
        return [word for word in self.words if isinstance(word, Member)]

    def abilities(self) -> list[Able]:
        """Return and forget what it said it is able for."""
        said = [word for word in self.words if isinstance(word, Able)]
        self.words = [word for word in self.words if not isinstance(word, Able)]
        return said

    def keep_company(self, seconds: float, *names: str) -> None:
        """Let time pass, with the others (`FIRST`) and the own words heard every second."""
        whole, rest = divmod(seconds, 1.0)
        for length in [1.0] * int(whole) + [rest]:
            self.wait(length)
            self.echo()
            for name in names or (FIRST,):
                self.member(name)

    def facts_of(self, kind: type[Fact]) -> list[Fact]:
        """Return what happened of one kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def session(self) -> int:
        """Return a session that has nothing to do."""
        number = self.join()
        self.settle_hello(number)
        self.wait(0.2)
        self.words.clear()
        return number
