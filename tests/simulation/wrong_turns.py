"""Turns of several bridges with one fault each, numbered as their rules number them, to see whether a run finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from bridge.contract.backoff import Draw
from bridge.contract.cluster import Covered
from bridge.contract.wire import Cover, Hello, UpFrame
from bridge.core.bell import Bell
from bridge.core.cluster.members import Peer, rank
from bridge.core.cluster.turns import Turns
from bridge.core.ledger import Debt
from bridge.core.settings import Periods


def with_turns(wrong: type[Turns]) -> type[Bell]:
    """Return rules that take turns like this."""

    class Joined(Bell):
        def join(self, **about: str | None) -> Turns:
            taken = self.dispatch.turns = self.turns = wrong(self.dispatch, self.timers, **about)
            return taken

    return Joined


class ForgivesByArrival(Turns):
    """W1: a peer's cover is taken for a receive that begins when it is heard."""

    def _proven(self, now: float, heard_by_boot: Mapping[str, tuple[int, int]], age_ms: int) -> float | None:
        return self.at(now)


class TrustsWordsFromBeforeASleep(Turns):
    """W2: moments by the clock that stands still in a suspend, and words said before it prove something after it."""

    def at(self, now: float) -> float:
        return now

    def suspended(self) -> None:
        """Nothing is forgotten."""


class ForgivesAllForOne(Turns):
    """W3: a debt of several marks is forgiven when one of them was named."""

    def _take_covered(self, now: float, debt: Debt, word: Covered, proven: float | None) -> None:
        marks = self._queue(debt.queue).marks
        if any(name in marks.named for name in word.ids):
            marks.named, marks.bare = {name: at for name, at in marks.named.items() if name in word.ids}, None
        super()._take_covered(now, debt, word, proven)


class SweepsFromArrival(Turns):
    """W6: a peer's cover counts for the sweep from when it is heard."""

    def _take_covered(self, now: float, debt: Debt, word: Covered, proven: float | None) -> None:
        super()._take_covered(now, debt, word, proven)
        if proven is not None:
            debt.covered_at = now
            self._timers.arm_sweep(debt, now)


class TakesUnknownForAble(Turns):
    """W8: a member of which nothing was heard comes first, if the order says so."""

    def before(self, debt: Debt, now: float) -> int:
        if self.members.alone(self.at(now)):
            return 0
        mine = rank(debt.queue, self.members.boot)
        return sum(rank(debt.queue, peer.boot) > mine for peer in self.members.peers.values() if _unknown(peer, debt))


def _unknown(peer: Peer, debt: Debt) -> bool:
    ability = peer.abilities.get(debt.queue)
    return not peer.word.leaving and (ability is None or ability.room)


class BeginsWithTheCover(Turns):
    """W13: a receive is said to have begun when its cover came."""

    def covered(self, debt: Debt, now: float, gen: int, after_s: float, next_visible_s: float | None) -> None:
        kept = self._queue(debt.queue)
        kept.marks.show(0.0, 0)
        shown, kept.marks.shown = kept.marks.shown, type(kept.marks.shown)([(0, self.at(now))])
        super().covered(debt, now, gen, 0.0, next_visible_s)
        kept.marks.shown = shown


class BelievesOwnOfAnEngine(Bell):
    """W10: who says that a queue is this bridge's own is believed, though an engine has it."""

    def __init__(self, boot: str, periods: Periods, draw: Draw, engine: Callable[[str], str] | None = None) -> None:
        super().__init__(boot, periods, draw, None)

    def frame(self, now: float, number: int, frame: UpFrame) -> None:
        """Take it as a listener would say it that took the boot of an answer for the owner of its queue."""
        if isinstance(frame, Hello):
            queues = [msgspec.structs.replace(each, own=True) for each in frame.queues]
            frame = msgspec.structs.replace(frame, queues=queues)
        elif isinstance(frame, Cover):
            frame = msgspec.structs.replace(frame, own=True)
        super().frame(now, number, frame)
