"""What `payload` may be: each kind decodes what fits and buries what does not, and what nothing fits is refused."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

from listeners import PULL_ONLY, Bury, Done, Listener, Message
from listeners.testing import run_once
from listeners.work.payload import decoder
from tests.listeners.rig import POISON, QUEUE, Store, listening, settled
from tests.support.processes import environment
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


def test_pydantic_tells_its_faults_without_the_body() -> None:
    """The reason of a burial names the field, in one line, and repeats nothing that a producer sent."""
    outcome = simulate(run_once(print, b'{"model": {"number": "secret"}}', payload=Holder))
    assert isinstance(outcome, Bury)
    assert "model.number: " in outcome.reason
    assert "data: Field required" in outcome.reason
    assert "secret" not in outcome.reason


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
    assert burial.reason == "attempt 2 of 2: the payload type broke: KeyError: 8"


def test_the_helper_for_tests_decodes_alike() -> None:
    """`run_once` gives the handler a Pydantic model as a listener does."""
    seen = []

    async def see(message: Message) -> None:
        seen.append(message.value)

    assert simulate(run_once(see, GOOD, payload=Model)) == Done()
    assert seen == [Model(number=7)]


def test_pydantic_is_loaded_only_for_its_own() -> None:
    """Neither the package nor a payload of another kind imports it."""
    program = (
        "import sys, msgspec\nfrom listeners import PULL_ONLY, Listener\n"
        "class Order(msgspec.Struct):\n    number: int\n"
        "Listener('memory:x', 'a/b', print, bridge=PULL_ONLY, payload=Order)\n"
        "assert not {'pydantic', 'attr', 'attrs'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=environment(), timeout=60)


def test_a_decoder_raises_only_what_a_listener_expects() -> None:
    """Whatever the kind, a body that does not fit is a `msgspec.DecodeError`."""
    for payload in (Model, Struct):
        with pytest.raises(msgspec.DecodeError):
            decoder(payload)(BAD)
