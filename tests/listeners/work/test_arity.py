"""What a listener is given to call is looked at when it is made: one line then, not a traceback later."""

from __future__ import annotations

import functools
import pathlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from listeners import PULL_ONLY, Listener, Message, RandomExponential, batch
from listeners.testing import run_once
from tests.listeners.rig import QUEUE, Store, listening, run_until
from tests.support.command import COMMAND, environment
from tests.support.sim_loop import simulate, simulated


async def two(message: Message, connection: object) -> None: ...


async def keyword(message: Message, *, connection: object) -> None: ...


async def none() -> None: ...


async def generating(message: Message) -> AsyncIterator[int]:
    yield 1


def plainly_generating(message: Message) -> Iterator[int]:
    yield 1


@batch
async def batch_of_two(messages: list[Message], connection: object) -> None: ...


class Callee:
    def __init__(self, message: Message | None = None) -> None: ...

    async def __call__(self, message: Message) -> None: ...

    async def method(self, message: Message) -> None: ...


class Generating:
    async def __call__(self, message: Message) -> AsyncIterator[int]:
        yield 1


async def one(message: Message) -> None: ...


async def spare(message: Message, connection: object = None) -> None: ...


def anything(*arguments: object, **named: object) -> None: ...


WRONG = {
    "two": (two, "two(message"),
    "keyword": (keyword, "keyword(message"),
    "none": (none, "none()"),
    "lambda": (lambda message, other: None, "<lambda>(message, other)"),
    "unbound method": (Callee.method, "Callee.method(self"),
    "batch of two": (batch_of_two, "batch_of_two("),
    "async generator": (generating, "generating is a generator"),
    "generator": (plainly_generating, "plainly_generating is a generator"),
    "generating callable": (Generating(), "Generating is a generator"),
    "partial of a generator": (functools.partial(generating), "generating is a generator"),
    "partial that takes none": (functools.partial(one, "message"), "one()"),
    "class": (Callee, "not the class Callee"),
    "partial of a class": (functools.partial(Callee), "not the class Callee"),
    "text": ("orders:handle", "not str"),
    "none at all": (None, "not NoneType"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_handler_that_cannot_be_called_is_refused(name: str) -> None:
    """In one line that names it and what it is given; by the helper for tests as well."""
    handler, words = WRONG[name]
    for refuse in (
        lambda: Listener("memory:x", QUEUE, handler, bridge=PULL_ONLY),
        lambda: simulate(run_once(handler, b"x")),
    ):
        with pytest.raises(TypeError, match=r"^a handler ") as refused:
            refuse()
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_call_in_place_of_its_function_is_refused() -> None:
    """A coroutine was made by a call of the handler, which is a slip of the hand."""
    called = one(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not its call"):
        Listener("memory:x", QUEUE, called, bridge=PULL_ONLY)  # type: ignore[arg-type]
    called.close()


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
    """Whatever takes one argument."""
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


@pytest.mark.parametrize("number", range(7))
def test_a_hook_takes_the_queue_or_nothing(number: int) -> None:
    """Both are taken."""
    hooks: list[Any] = [none, one, print, anything, MagicMock(), lambda: None, functools.partial(two, 1)]
    hook = hooks[number]
    Listener("memory:x", QUEUE, one, bridge=PULL_ONLY, on_queue_empty=hook, on_work_detected=hook)


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
        ("NUMBER", "is no function"),
    ],
)
def test_the_command_ends_with_one_line_and_78(tmp_path: pathlib.Path, name: str, words: str) -> None:
    """Before it connects to anything."""
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
