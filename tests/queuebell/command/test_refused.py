"""What every command that asks a bridge does with a key that is refused: it ends with one code, and says why."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.queuebell.command.test_key import created
from tests.support.command import perform, serving

QUEUE = "billing/orders"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Serve with `--auth`, and return the address with a key that grants nothing of what is asked."""
    folder = tmp_path_factory.mktemp("asked")
    secret = created(folder, "elsewhere", "put=other/queue")
    with serving(folder, "--auth") as bridge:
        yield bridge.url, secret


@pytest.fixture(params=["unauthenticated", "unknown", "forbidden"])
def env(request: pytest.FixtureRequest, asked: tuple[str, str], tmp_path: pathlib.Path) -> dict[str, str]:
    """What a client's environment says of bridge, store and key."""
    url, secret = asked
    key = {"unauthenticated": "", "unknown": f"{secret[:-4]}0000", "forbidden": secret}[request.param]
    return {
        "QUEUEBELL_BRIDGE": url,
        "QUEUEBELL_STORE": url,
        "QUEUEBELL_API_KEY": key,
        "QUEUEBELL_DATA": str(tmp_path),
    }


@pytest.mark.parametrize(
    "words",
    [
        ["publish", QUEUE],
        ["publish", f"{QUEUE}:3"],
        ["status"],
        ["status", QUEUE],
        ["explain", QUEUE],
        ["check"],
        ["queue", "list"],
        ["queue", "put", QUEUE, "x"],
        ["queue", "get", QUEUE],
        ["queue", "peek", QUEUE],
        ["queue", "depth", QUEUE],
        ["queue", "pause", QUEUE],
        ["queue", "create", QUEUE],
        ["queue", "delete", QUEUE],
        ["queue", "forget", QUEUE],
        ["queue", "replay", QUEUE],
    ],
    ids=" ".join,
)
def test_a_refused_key_is_1_for_every_command(words: list[str], env: dict[str, str]) -> None:
    """The bridge is there, so it is not 69: one line of standard error says what is not granted."""
    done = perform(*words, env=env, code=1)
    said = done.stderr.decode()
    assert len(said.splitlines()) == 1 and ("key" in said or "is not granted" in said)


def test_a_refused_key_is_1_also_where_another_bridge_is_gone(asked: tuple[str, str], tmp_path: pathlib.Path) -> None:
    """Of several bridges one that refuses is one that answers."""
    both = {"QUEUEBELL_API_KEY": "qb_none", "QUEUEBELL_DATA": str(tmp_path)}
    for words in (["publish", QUEUE], ["status"], ["check"]):
        perform(*words, "--bridge", f"{asked[0]},{NOWHERE}", env=both, code=1)
    for words in (["put", QUEUE, "x"], ["depth", QUEUE], ["list"]):
        for store in (f"{asked[0]},{NOWHERE}", f"{NOWHERE},{asked[0]}"):
            perform("queue", *words, "--store", store, env=both, code=1)
