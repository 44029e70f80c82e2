"""How much work there is: every combination of what can be known, against what has to hold of the answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.errors import BadInput, ConfigurationError
from bridge.core.keda.asked import KEY, KEYS, KedaStore, Target, asked
from bridge.core.keda.demand import Known, changes_in, work
from bridge.core.keda.saying import GAP_S, Saying

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


STORES = ("east", "west")


@pytest.mark.parametrize(
    ("metadata", "target"),
    [
        ({"queue": "billing/orders"}, Target("billing/orders", None, 32, 10)),
        ({"queue": "a/b", "perProcess": "1", "startSeconds": "0"}, Target("a/b", None, 1, 0)),
        ({"queue": "a/b", "perProcess": "1000000", "startSeconds": "600"}, Target("a/b", None, 1_000_000, 600)),
        ({"queue": "a/b", KEY: "x" * 8192}, Target("a/b")),
        ({"queue": "a/b", "perProcess": "007", "store": "east"}, Target("a/b", "east", 7, 10)),
        (
            {
                "queue": "a/b",
                "scalerAddress": "b:1",
                "enableTLS": "true",
                "unsafeSsl": "no",
                "tlsCertFile": "",
                KEY: "k",
            },
            Target("a/b"),
        ),
    ],
)
def test_what_is_right(metadata: dict[str, str], target: Target) -> None:
    """Defaults, bounds, and the keys that KEDA reads itself."""
    assert asked(metadata, STORES) == target


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({}, "queue: is missing"),
        ({"queue": ""}, "queue: one queue"),
        ({"queue": "orders"}, "queue: one queue"),
        ({"queue": "a/b:8"}, "of a partitioned one each part by itself"),
        ({"queue": "a/b", "quue": "a/b"}, "'quue' is none that is known here: queue, perProcess, startSeconds, store"),
        ({"queue": "a/b", "Queue": "a/b"}, "'Queue' is none that is known here"),
        ({"queue": "a/b", "x\n": ""}, "there is a key that is none"),
        ({"queue": "a/b", "y" * 41: ""}, "there is a key that is none"),
        *(
            ({"queue": "a/b", "perProcess": text}, "perProcess: is a whole number from 1 to 1000000, in quotes")
            for text in ("0", "-1", "1.5", "", " 1", "1000001", "9" * 5000, "١", "1e3")
        ),
        *(
            ({"queue": "a/b", "startSeconds": text}, "startSeconds: is a whole number from 0 to 600")
            for text in ("601", "-0", "ten")
        ),
        (
            {"queue": "a/b", "store": "north"},
            "store: is the name of a [[keda_store]] of this bridge: one of east, west",
        ),
        ({"queue": "a/b", KEY: "x" * 8193}, "at most 32 keys, each of 8192 characters"),
        ({str(number): "" for number in range(33)}, "at most 32 keys"),
        ({str(number): "" for number in range(32)}, "'0' is none that is known here"),
    ],
)
def test_what_is_wrong(metadata: dict[str, str], told: str) -> None:
    """Each mistake is told in words that say where it is and what would be right."""
    with pytest.raises(BadInput) as caught:
        asked(metadata, STORES)
    assert told in str(caught.value)
    assert caught.value.code == "bad_parameter"


@given(st.dictionaries(st.sampled_from([*KEYS, "scalerAddress", "other"]) | st.text(max_size=8), st.text(max_size=12)))
def test_whatever_comes(metadata: dict[str, str]) -> None:
    """It is a target or a refusal, no value of another key is echoed, and least of all the credential."""
    metadata[KEY] = "qb_topsecret"
    told = ""
    try:
        target = asked(metadata, STORES)
    except BadInput as error:
        told = str(error)
    if told:
        assert "topsecret" not in told
        assert told.isprintable()
    else:
        assert target.queue == metadata["queue"]
        assert 1 <= target.per_process <= 1_000_000
        assert 0 <= target.start_s <= 600


def test_a_metric_is_one_segment_of_a_path() -> None:
    """Kubernetes asks for it by its name in an address."""
    assert Target("billing/orders").metric == "queuebell-billing-orders"


@pytest.mark.parametrize("name", ["", "a b", "x" * 81, "-x"])
def test_a_store_has_a_plain_name(name: str) -> None:
    """It stands in a ScaledObject."""
    with pytest.raises(ConfigurationError, match="keda_store: name"):
        KedaStore(name=name, url="redis://h")


class Run:
    """A target whose state changes at known moments; whoever changes it touches it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state: bool | None = None
        self.rule = Saying(self.now)
        self.said: list[tuple[float, bool]] = []
        self.looks: list[float] = []
        self.until(self.now)

    def until(self, when: float) -> None:
        while self.rule.deadline() <= when:
            self.now = max(self.now, self.rule.deadline())
            self.looks.append(self.now)
            if self.rule.looked(self.now, self.state):
                assert self.rule.said is self.state is not None
                self.said.append((self.now, self.state))
        self.now = when


def test_the_same_is_said_every_30_s_and_not_before() -> None:
    """KEDA forgets what comes at a bad moment, and is not to be flooded either."""
    run = Run()
    run.state = False
    run.rule.touched(run.now)
    run.until(run.now + GAP_S)
    for _ in range(100):
        run.until(run.now + 1.0)
        run.rule.touched(run.now)
    times = [when for when, _ in run.said]
    assert [round(b - a) for a, b in itertools.pairwise(times)] == [30, 30, 30]


def test_a_look_between_puts_nothing_off() -> None:
    """What happens before the first look, or between two of them, moves neither."""
    rule = Saying(0.0)
    rule.touched(3.0)
    assert rule.deadline() == 0.0
    assert rule.looked(3.0, True)
    rule.touched(32.0)
    assert rule.deadline() == 32.0
    assert not rule.looked(32.0, True)
    assert rule.deadline() == 33.0
