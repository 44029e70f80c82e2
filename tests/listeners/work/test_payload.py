"""What `payload` may be: each kind decodes what fits and buries what does not, and what nothing fits is refused."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple
from unittest.mock import AsyncMock, MagicMock

import attrs
import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

from queuebell.listeners import PULL_ONLY, Listener, Message, RandomExponential
from queuebell.listeners.testing import run_once
from tests.listeners.rig import POISON, QUEUE, Store, listening, run_until, settled
from tests.support.command import COMMAND, environment
from tests.support.sim_loop import simulate, simulated

GOOD, BAD = b'{"number": 7}', b'{"number": "many"}'


class Struct(msgspec.Struct):
    number: int


@dataclasses.dataclass
class Data:
    number: int


class Typed(TypedDict):
    number: int


class Tuple(NamedTuple):
    number: int


@attrs.define
class Attrs:
    number: int = attrs.field(validator=attrs.validators.gt(3))


class Model(pydantic.BaseModel):
    number: int


@pydantic.dataclasses.dataclass
class PydanticData:
    number: int = pydantic.Field(gt=3)


class Other(pydantic.BaseModel):
    name: str


class Holder(pydantic.BaseModel):
    model: Model
    data: Data


@dataclasses.dataclass
class Around:
    models: list[Model]
    typed: Typed | None = None


class Plain:
    def __init__(self, number: int) -> None:
        self.number = number


@attrs.define
class Converting:
    number: int = attrs.field(converter=int)


@dataclasses.dataclass
class WithPlain:
    plain: Plain


class StructWithModel(msgspec.Struct):
    model: Model


class Node(msgspec.Struct):
    number: int
    next: Node | None = None


class Breaking(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def _look_up(cls, number: int) -> int:
        return {7: 7}[number]


KINDS: list[tuple[Any, Any, bytes, bytes]] = [
    (Struct, Struct(7), GOOD, BAD),
    (Data, Data(7), GOOD, BAD),
    (Typed, {"number": 7}, GOOD, BAD),
    (Tuple, Tuple(7), b"[7]", b'["many"]'),
    (Attrs, Attrs(7), GOOD, b'{"number": 3}'),
    (Node, Node(7), GOOD, BAD),
    (Model, Model(number=7), GOOD, BAD),
    (PydanticData, PydanticData(7), GOOD, b'{"number": 3}'),
    (Holder, Holder(model=Model(number=7), data=Data(7)), b'{"model": %b, "data": %b}' % (GOOD, GOOD), GOOD),
    (Around, Around([Model(number=7)]), b'{"models": [%b]}' % GOOD, b'{"models": [%b]}' % BAD),
    (list[Model], [Model(number=7)], b"[%b]" % GOOD, b"[%b]" % BAD),
    (dict[str, Model | None], {"a": None}, b'{"a": null}', b'{"a": %b}' % BAD),
    (Model | Other, Other(name="x"), b'{"name": "x"}', BAD),
    (object, {"number": 7}, GOOD, b"{"),
    (int, 7, b"7", b"many"),
]


@pytest.mark.parametrize("payload, value, good, bad", KINDS, ids=range(len(KINDS)))
@simulated
async def test_a_body_is_decoded_or_buried(payload: Any, value: Any, good: bytes, bad: bytes) -> None:
    """What fits is the value, of the very type; what does not, and what is no UTF-8 or no JSON, is buried."""
    store, seen = Store(), []

    async def handle(message: Message) -> None:
        seen.append(message.value)

    await store.fill(good, bad, b"\xff", b"{", b"[" * 5000, good)
    async with listening(store, handle, payload=payload) as listener:
        await settled(listener, 2)
        await settled(listener, 4, "buried")
    assert seen == [value, value]
    assert type(seen[0]) is type(value)
    reasons = [burial.reason for burial in await store.burials(POISON)]
    assert all(reason.startswith("undecodable payload: ") and "\n" not in reason for reason in reasons)
    assert not [reason for reason in reasons if " more" in reason]


@pytest.mark.parametrize(
    "payload, words",
    [
        (Plain, "Plain is not a msgspec.Struct, a dataclass"),
        (WithPlain, "Plain in WithPlain is not"),
        (list[Plain], "Plain in list"),
        (pathlib.Path, f"{pathlib.Path.__module__}.Path is not"),
        (Converting, "the converter of Converting.number would not be called"),
        (StructWithModel, "Pydantic cannot decode to StructWithModel: PydanticSchemaGenerationError: "),
        (Model | Plain, "Pydantic cannot decode to"),
        (Struct | Data, "cannot be decoded to"),
        ("Struct", "cannot be decoded to"),
        (Struct(7), "Struct(number=7) cannot be decoded to"),
    ],
    ids=range(10),
)
def test_a_type_that_no_body_fits_is_refused(payload: Any, words: str) -> None:
    """By the listener and by the test helper, in one line that names it; else every message would be buried."""
    with pytest.raises(TypeError, match=r"^payload: ") as refused:
        Listener("memory:x", QUEUE, print, bridge=PULL_ONLY, payload=payload)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(TypeError, match=r"^payload: "):
        simulate(run_once(print, GOOD, payload=payload))


@simulated
async def test_a_rule_of_the_type_that_breaks_is_a_failed_attempt() -> None:
    """A bug in a validator says nothing about the message, which is tried again and keeps its reason."""
    store = Store()

    async def handle(message: Message) -> None: ...

    await store.fill(b'{"number": 8}', GOOD)
    async with listening(store, handle, payload=Breaking, max_attempts=2) as listener:
        await settled(listener, 1, "buried")
        assert listener.state().queues[QUEUE].retried == 1
        assert listener.state().queues[QUEUE].handled == 1
    (burial,) = await store.burials()
    assert burial.reason == "attempt 2 of 2: the payload type raised: KeyError: 8"


def test_pydantic_is_loaded_only_for_its_own() -> None:
    """Neither the package nor a payload of another kind imports it."""
    program = (
        "import sys, msgspec\nfrom queuebell.listeners import PULL_ONLY, Listener\n"
        "class Order(msgspec.Struct):\n    number: int\n"
        "Listener('memory:x', 'a/b', print, bridge=PULL_ONLY, payload=Order)\n"
        "assert not {'pydantic', 'attr', 'attrs'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=environment(), timeout=60)


async def two(message: Message, connection: object) -> None: ...


async def none() -> None: ...


async def generating(message: Message) -> AsyncIterator[int]:
    yield 1


def plainly_generating(message: Message) -> Iterator[int]:
    yield 1


class Callee:
    def __init__(self, message: Message | None = None) -> None: ...

    async def __call__(self, message: Message) -> None: ...

    async def method(self, message: Message) -> None: ...


async def one(message: Message) -> None: ...


async def spare(message: Message, connection: object = None) -> None: ...


def anything(*arguments: object, **named: object) -> None: ...


RIGHT = {
    "one": one,
    "spare": spare,
    "anything": anything,
    "built in": print,
    "callable": Callee(),
    "method": Callee().method,
    "partial": functools.partial(two, connection=1),
    "async mock": AsyncMock(),
    "mock": MagicMock(),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_handler_that_can_be_called_is_taken(name: str) -> None:
    Listener("memory:x", QUEUE, RIGHT[name], bridge=PULL_ONLY)


class Halves:
    def tasks(self) -> int:
        return 1


class Backwards:
    def miss(self) -> float:
        return 1.0

    def hit(self) -> None: ...


@pytest.mark.parametrize(
    "options, words",
    [
        ({"on_queue_empty": two}, "a hook takes one argument, and two"),
        ({"on_work_detected": generating}, "generating is a generator"),
        ({"on_queue_empty": Callee}, "not the class Callee"),
        ({"on_queue_empty": "print"}, "a hook is a function, not str"),
        ({"scaling": Halves()}, "scaling: its tasks takes one argument"),
        ({"scaling": lambda depth: 1}, "scaling: its tasks is a function, not NoneType"),
        ({"backoff": Backwards()}, "backoff: its miss takes one argument"),
        ({"backoff": RandomExponential}, "backoff: its miss takes one argument"),
        ({"backoff": 5.0}, "backoff: its miss is a function, not NoneType"),
        ({"failures": two}, "failures takes one argument"),
        ({"failures": none}, "failures takes one argument"),
    ],
)
def test_what_else_is_called_is_looked_at_too(options: dict[str, Any], words: str) -> None:
    """Hooks, scaling, back-off and the rule of failures."""
    with pytest.raises(TypeError) as refused:
        Listener("memory:x", QUEUE, one, bridge=PULL_ONLY, **options)
    assert words in str(refused.value)


async def generating_later(message: Message) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("generates", [plainly_generating, generating_later])
@simulated
async def test_a_generator_that_a_plain_function_returns_is_a_failed_attempt(generates: Any) -> None:
    """It looks like a function until it is called; its message is not taken for handled."""
    store = Store()
    await store.fill(b"x")
    await run_until(listening(store, lambda message: generates(message), max_attempts=1), 1, "buried")
    (burial,) = await store.burials()
    assert "returned a generator: nothing of it has run" in burial.reason


@pytest.mark.parametrize(
    "name, words",
    [
        ("two", "takes one argument, and two is called as two(message, connection)"),
        ("Callee", "not the class Callee"),
        ("generating", "generating is a generator"),
        ("NUMBER", "is not a function"),
    ],
)
def test_the_command_ends_with_one_line_and_78(tmp_path: pathlib.Path, name: str, words: str) -> None:
    (tmp_path / "orders.py").write_text(
        "NUMBER = 7\n\n\nasync def two(message, connection): ...\n\n\nasync def generating(message):\n    yield\n\n\n"
        "class Callee:\n    def __init__(self, message): ...\n"
    )
    ended = subprocess.run(
        [*COMMAND, "listen", "http://127.0.0.1:9", QUEUE, f"orders:{name}"],
        capture_output=True,
        text=True,
        env=environment({}),
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 78
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"queuebell listen: orders:{name}")
    assert words in line
