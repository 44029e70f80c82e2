"""How much work there is: every combination of what can be known, against what has to hold of the answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest

from bridge.core.keda.demand import Known, changes_in, work

START_S = 10
PER_PROCESS = 4


def every() -> Iterator[Known]:
    """All combinations of the values at which something changes."""
    flags = (False, True)
    for announced, paused, unseen, lapsed in itertools.product(flags, repeat=4):
        for visible, invisible, busy in itertools.product((None, 0, 1, 40), (0, 1, 9, 40), (0, 1, 2)):
            for due_s, leased in itertools.product((None, 0.0, 10.0, 10.5), (None, 0, 9)):
                if (visible is not None or not invisible) and (leased or 0) <= invisible:
                    yield Known(
                        announced=announced, paused=paused, visible=visible, invisible=invisible, busy=busy,
                        unseen=unseen, lapsed=lapsed, due_s=due_s, leased=leased,
                    )  # fmt: skip


def test_every_combination() -> None:
    """Nothing that waits or is held is overlooked, nothing is made up, and what is not known is not guessed."""
    seen = 0
    for known in every():
        found = work(known, PER_PROCESS, START_S)
        soon = known.due_s is not None and known.due_s <= START_S
        seen += 1
        if found is None:
            nothing = not (known.announced or known.busy or soon or known.paused)
            assert known.visible is None and known.unseen and nothing, known
            continue
        assert found >= known.busy, ("whoever is busy is never ended", known)
        visible = known.visible or 0
        assert found <= max(visible + known.invisible, known.busy, 1), ("no more than there is", known)
        if known.paused:
            most = known.busy * PER_PROCESS if known.leased is None else max(known.busy, known.leased)
            assert found <= most, ("a paused queue starts nobody", known)
            continue
        assert found >= visible, known
        if known.announced or soon:
            assert found >= 1, known
        if known.lapsed or (known.unseen and known.leased is None):
            assert found >= visible + known.invisible, ("whoever may hold it is not ended", known)
        elif known.leased is not None:
            least = max(known.busy, int(known.announced or soon))
            assert found == max(visible + known.leased, least), ("what is leased counts, whoever holds it", known)
        elif not known.busy:
            assert found == max(visible, int(known.announced or soon)), ("what is delayed needs nobody yet", known)
        else:
            assert found >= min(known.invisible, known.busy * PER_PROCESS) + visible, known
    assert seen == 16 * 96 * 4


@pytest.mark.parametrize("field", ["announced", "visible", "invisible", "busy"])
def test_more_of_anything_is_never_less_work(field: str) -> None:
    """A count that comes late or twice cannot have a worker ended that another count wants."""
    more = {"announced": lambda _: True}.get(field, lambda value: (value or 0) + 1)
    for known in every():
        if field == "invisible" and known.visible is None:
            continue
        before = work(known, PER_PROCESS, START_S)
        after = work(msgspec.structs.replace(known, **{field: more(getattr(known, field))}), PER_PROCESS, START_S)
        assert before is None or (after is not None and after >= before), known


def test_the_answer_changes_by_itself_only_when_it_says_so() -> None:
    """Until `changes_in` the same is found as now; from then on there is work."""
    for known in every():
        at = changes_in(known, START_S)
        now = work(known, PER_PROCESS, START_S)
        if at is None:
            assert known.due_s is None or known.paused or known.due_s <= START_S
            continue
        assert known.due_s is not None and at > 0
        before = msgspec.structs.replace(known, due_s=known.due_s - at * 0.99)
        after = msgspec.structs.replace(known, due_s=known.due_s - at)
        assert work(before, PER_PROCESS, START_S) == now, known
        assert work(after, PER_PROCESS, START_S), known
