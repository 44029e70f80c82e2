"""What a bridge says a queue holds: its age grows, the newest count is shown, and what is not told has words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bridge.contract.errors import BadInput
from bridge.contract.untold import UNTOLD
from bridge.contract.wire import (
    BuriedCount,
    Hello,
    ListenerHeartbeat,
    QueueBeat,
    StoreDepth,
    Subscription,
    decode_up,
    encode_frame,
)
from bridge.core.receives import WHOLE_S
from bridge.observe.metrics import OTHER, QUEUE_LABELS_MAX, Metrics
from bridge.observe.slices import at_once
from bridge.service import content, overview
from bridge.service import status as standing
from bridge.service.state import QueueState
from tests.support.bells import QUEUE, Rig

POISON = QUEUE + "-poison"
WHOLE = StoreDepth(7, 3, 0, leased=2, delayed=1, oldest_ms=5000)


def state(rig: Rig, queue: str = QUEUE) -> QueueState:
    """Return how a queue stands."""
    found = standing.describe(rig.bell, queue, rig.now)
    assert found is not None
    return found


def joined(rig: Rig, store: str = "") -> int:
    """Return the number of a session whose store is of this kind, and whose first look found nothing."""
    number = rig.join()
    hello = Hello("a" * 32, "one", [Subscription(QUEUE, 32)], store=store)
    rig.say(number, hello)
    rig.settle_hello(number)
    return number


def told(rig: Rig, number: int, depth: StoreDepth | None = None, buried: BuriedCount | None = None) -> None:
    """Have a session tell counts."""
    rig.say(number, ListenerHeartbeat(7, {QUEUE: QueueBeat(depth=depth, buried=buried)}))


def metrics(rig: Rig) -> dict[str, str]:
    """Return what is exported of queues, by name and labels."""
    counted = Metrics()
    counted.watch_counts(lambda: content.held(rig.bell, rig.now))
    lines = counted.render().decode().splitlines()
    found = (re.fullmatch(r"queuebell_queue_(\w+)(\{.*\}) (.*)", line) for line in lines)
    return {f"{one[1]}{one[2]}": one[3] for one in found if one}


def test_the_age_of_the_oldest_grows_until_nothing_is_found() -> None:
    """Between looks, also while nobody looks; the cover that finds nothing ends it before anything is counted again."""
    rig = Rig()
    number = joined(rig, "postgres")
    told(rig, number, WHOLE)
    shown = state(rig)
    assert (shown.oldest_ms, shown.leased, shown.delayed, shown.untold) == (
        5000, 2, 1, {"buried": content.NOBODY_COUNTED_BURIED},
    )  # fmt: skip
    rig.wait(8.0)
    assert (state(rig).oldest_ms, state(rig).depth_age_ms) == (13_000, 8000)
    (row,) = at_once(overview.queues(rig.bell, rig.now, overview.Wanted(), lambda queue: True)).rows
    assert row.waiting_ms == row.oldest_ms == 13_000
    assert metrics(rig)[f'oldest_seconds{{queue="{QUEUE}"}}'] == "13.0"
    rig.trigger()
    (gen,) = rig.gens(number)
    rig.started(number, gen)
    rig.cover(number, gen)
    assert (state(rig).oldest_ms, metrics(rig)[f'oldest_seconds{{queue="{QUEUE}"}}']) == (None, "0.0")
    told(rig, number, StoreDepth(0, 0, 0, leased=0, delayed=0))
    assert (state(rig).oldest_ms, set(state(rig).untold)) == (None, {"buried"})


def test_what_was_counted_goes_on_ageing_in_a_machine_that_slept() -> None:
    """A store elsewhere went on meanwhile (B15)."""
    rig = Rig()
    told(rig, joined(rig), WHOLE)
    rig.bell.suspended(rig.now, 60.0)
    assert (state(rig).oldest_ms, state(rig).depth_age_ms) == (65_000, 60_000)


@pytest.mark.parametrize(
    ("kind", "depth", "missing"),
    [
        ("sqs", StoreDepth(7, 3, 0, leased=2, delayed=1), {"oldest_ms", "delayed"}),
        ("azure", StoreDepth(7, 0, 0), {"oldest_ms", "visible", "leased", "delayed"}),
        ("jetstream", StoreDepth(7, 3, 0, leased=3, oldest_ms=1), {"oldest_ms", "delayed"}),
        ("", StoreDepth(7, 3, 0), {"oldest_ms", "leased", "delayed"}),
        ("", StoreDepth(0, 0, 0), set()),
        ("postgres", None, {"depth", "oldest_ms", "leased", "delayed"}),
        ("bogus", WHOLE, set()),
    ],
)
def test_what_a_store_does_not_tell_is_said_in_words(kind: str, depth: StoreDepth | None, missing: set[str]) -> None:
    """And nothing is exported of it: a 0 that nobody counted would be believed."""
    rig = Rig()
    told(rig, joined(rig, kind), depth)
    shown = state(rig)
    assert set(shown.untold) == missing | {"buried"}
    assert all(shown.untold.values())
    for name, words in UNTOLD.get(kind, {}).items():
        assert shown.untold[name] == words
    names = {label.partition("{")[0] for label in metrics(rig)}
    assert ("leased" in names) == (depth is not None and depth.leased is not None)
    assert ("oldest_seconds" in names) == (depth is not None and (depth.oldest_ms is not None or not depth.visible))
    assert "buried" not in names


def test_a_bare_number_does_not_hide_for_a_while_what_was_told_beside_another() -> None:
    """A scaler counts two numbers; that nothing is left any more is believed at once."""
    rig = Rig()
    number = joined(rig)
    told(rig, number, WHOLE)
    rig.wait(1.0)
    told(rig, number, StoreDepth(9, 1, 0))
    assert (state(rig).depth.visible, state(rig).leased) == (7, 2)  # type: ignore[union-attr]
    rig.now += WHOLE_S
    told(rig, number, StoreDepth(9, 1, 0))
    assert (state(rig).depth.visible, state(rig).leased) == (9, None)  # type: ignore[union-attr]
    told(rig, number, WHOLE)
    told(rig, number, StoreDepth(0, 0, 0))
    assert state(rig).depth.visible == 0  # type: ignore[union-attr]


def test_the_newest_count_of_the_poison_queue_is_shown() -> None:
    """Told of the queue, or of the poison queue itself, which a supervisor listens to; with its age."""
    rig = Rig()
    number = joined(rig)
    told(rig, number, buried=BuriedCount(4, 1000))
    rig.wait(2.0)
    told(rig, number, buried=BuriedCount(2, 9000))
    shown = state(rig)
    assert (shown.buried, shown.buried_age_ms, "buried" in shown.untold) == (4, 3000, False)
    assert metrics(rig)[f'buried{{queue="{QUEUE}"}}'] == "4.0"
    supervisor = rig.join(POISON)
    rig.settle_hello(supervisor, POISON)
    rig.say(supervisor, ListenerHeartbeat(7, {POISON: QueueBeat(depth=StoreDepth(1, 0, 0))}))
    assert (state(rig).buried, state(rig).buried_age_ms) == (1, 0)
    assert (state(rig, POISON).buried, "buried" in state(rig, POISON).untold) == (None, False)
    view = at_once(overview.queues(rig.bell, rig.now, overview.Wanted(sort="buried"), lambda queue: True))
    assert (view.totals.buried, view.rows[0].buried) == (1, 1)


def test_a_poison_queue_that_several_share_is_counted_once() -> None:
    """Partitions of a queue bury in one place; each shows it, and the sum has it once."""
    rig = Rig()
    for queue in ("a/p0", "a/p1"):
        number = rig.join(queue)
        rig.settle_hello(number, queue)
        rig.say(number, ListenerHeartbeat(7, {queue: QueueBeat(buried=BuriedCount(5, 0, "a/p-poison"))}))
    view = at_once(overview.queues(rig.bell, rig.now, overview.Wanted(), lambda queue: True))
    assert ([row.buried for row in view.rows], view.totals.buried) == ([5, 5], 5)


def test_own_queues_tell_all_of_now() -> None:
    """Also while they are paused; the poison queue of another name is known once a listener has named it."""
    rig = Rig()
    rig.bell.own.level(
        rig.now, QUEUE, exists=True, visible=3, invisible=4, rose=True, put=3, receives=0, empty=0, next_visible_s=None,
        leased=1, delayed=3, oldest_s=2.5,
    )  # fmt: skip
    rig.level(2, queue=POISON)
    rig.level(6, queue="a/graves")
    rig.wait(1.0)
    shown = state(rig)
    assert (shown.leased, shown.delayed, shown.oldest_ms, shown.buried, shown.untold) == (1, 3, 3500, 2, {})
    assert (shown.depth_age_ms, shown.buried_age_ms) == (None, None)
    number = rig.join(own=True)
    told(rig, number, buried=BuriedCount(5, 0, "a/graves"))
    assert (state(rig).buried, state(rig).buried_age_ms) == (6, None), "the service counts it itself"
    assert metrics(rig)[f'messages{{queue="{QUEUE}",state="invisible"}}'] == "4.0"


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": StoreDepth(1, 1, 0, leased=-1)},
        {"depth": StoreDepth(1, 1, 0, delayed=2)},
        {"depth": StoreDepth(1, 1, 0, oldest_ms=-1)},
        {"depth": StoreDepth(1, 1, 0, oldest_ms=10**15)},
        {"buried": BuriedCount(-1, 0)},
        {"buried": BuriedCount(1, -1)},
        {"buried": BuriedCount(10**15, 0)},
        {"buried": BuriedCount(1, 0, "no/such/name")},
    ],
)
def test_counts_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    """Nothing of such a heartbeat is believed."""
    with pytest.raises((BadInput, ValueError)):
        decode_up(encode_frame(ListenerHeartbeat(7, {QUEUE: QueueBeat(**wrong)})))


@pytest.mark.parametrize("kind", ["SQS", "a b", "x" * 21, "\x1b[2J"])
def test_the_kind_of_a_store_is_a_word(kind: str) -> None:
    """It is looked up, and never shown."""
    with pytest.raises(BadInput, match="the kind of a store"):
        decode_up(encode_frame(Hello("a" * 32, "one", [Subscription(QUEUE, 1)], store=kind)))


def test_queues_without_a_label_of_their_own_add_up() -> None:
    """Names come from outside; of the oldest the oldest is shown."""
    rig = Rig()
    for number in range(QUEUE_LABELS_MAX + 3):
        rig.bell.own.level(
            rig.now, f"a/q{number}", exists=True, visible=2, invisible=1, rose=False, put=0, receives=0, empty=0,
            next_visible_s=None, leased=1, oldest_s=float(number),
        )  # fmt: skip
    found = metrics(rig)
    assert len([name for name in found if name.startswith("leased")]) == QUEUE_LABELS_MAX + 1
    assert found[f'messages{{queue="{OTHER}",state="visible"}}'] == "6.0"
    assert found[f'oldest_seconds{{queue="{OTHER}"}}'] == f"{QUEUE_LABELS_MAX + 2}.0"
