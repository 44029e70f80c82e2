"""A list of queues reads what may be seen, and a bounded part of it for each request."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from bridge.core.grants import Reach
from bridge.core.keys import with_terms
from bridge.service.access import access_file
from bridge.service.access.listing import CALLS_MAX, READ_AT_ONCE, Row, listed
from bridge.service.access.watch import AccessWatch
from tests.support.access import written
from tests.support.azure import ACCOUNT, serving_azure
from tests.support.web import Served, serving


class Names:
    """Sorted names, and how many of them were read in how many calls."""

    def __init__(self, names: list[str]) -> None:
        self.names = sorted(names)
        self.calls = 0
        self.read_names = 0

    async def read(self, prefix: str, after: str, limit: int) -> list[Row]:
        """Read as a store does."""
        self.calls += 1
        found = [name for name in self.names if name.startswith(prefix) and name > after][:limit]
        self.read_names += len(found)
        return [(name, {}) for name in found]


PATTERNS: list[list[str]] = [["b/*"], ["b/q1"], ["b/q1", "b/q5", "zz/none"], ["b/que:2"]]


@pytest.mark.parametrize("patterns", PATTERNS)
async def test_a_list_costs_the_same_beside_any_number_of_others(patterns: list[str]) -> None:
    """Calls and names that are read: with 100 queues of others and with 10,000, before and behind."""
    costs: list[tuple[int, int]] = []
    for size in (100, 10_000):
        others = [f"{account}/q{number}" for account in ("a", "c") for number in range(size // 2)]
        names = Names([*others, *(f"b/q{number}" for number in range(8)), "b/que-p0", "b/que-p1"])
        reach = Reach(patterns)
        found, following = await listed(names.read, reach, "", "", 1000)
        assert [name for name, _ in found] == [name for name in names.names if reach.covers(name)]
        assert following is None
        costs.append((names.calls, names.read_names))
    assert costs[0] == costs[1]


async def test_one_request_is_bounded() -> None:
    """By calls where each queue is granted by its name or none fits; all are met by going on where a page ended."""
    mine = [f"a/q{number:04}" for number in range(0, 200, 2)]
    for reach, fits in ((Reach(mine), None), (Reach(["*"]), lambda name: name == "a/q39999")):
        names = Names([f"a/q{number:04}" for number in range(40_000)])
        met: list[str] = []
        after: str | None = ""
        requests = 0
        while after is not None:
            names.calls = names.read_names = 0
            found, after = await listed(names.read, reach, "", after, 1000, fits)
            assert names.calls <= CALLS_MAX
            assert names.read_names <= CALLS_MAX * READ_AT_ONCE
            met += [name for name, _ in found]
            requests += 1
        assert met == (["a/q39999"] if fits else mine)
        assert requests > 1


def counted(served_store: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the names that the store lists from now on."""
    read: list[int] = []
    queues = served_store.queues

    async def counting(prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        found: list[str] = await queues(prefix, after, limit)
        read.append(len(found))
        return found

    monkeypatch.setattr(served_store, "queues", counting)
    return read


async def make(served: Served, size: int) -> None:
    """Make queues of others on both sides of the account, and two in it."""
    own = served.bridge.own
    assert own is not None
    for name in [
        "mine/one",
        "mine/two",
        f"{ACCOUNT}/orders",
        *(f"{a}/q{n}" for a in ("a", "z") for n in range(size // 2)),
    ]:
        await own.create(name)


async def test_by_every_way_in_the_same_whatever_others_have(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list over HTTP and at Azure's endpoint, and the count of a principal's queues: at two sizes."""
    path = tmp_path / "access.json"
    mine = ["mine/*", f"{ACCOUNT}/*"]
    secrets = written(path, {"clerk": {"look": mine, "put": mine, "manage": mine}})
    access_file.change(path, lambda found: with_terms(found, "clerk", {}, limits={"queues": "2"}))
    costs: list[list[list[int]]] = []
    for size in (10, 300):
        async with AccessWatch(path) as watch, serving(access=watch) as served:
            await make(served, size)
            async with serving_azure(served.bridge, access=watch, principal="clerk") as azure:
                read = counted(served.bridge.store, monkeypatch)
                auth = f"Bearer {secrets['clerk']}"
                answer = await served.ask("GET", "/v1/queues?prefix=m&limit=1", Authorization=auth)
                assert answer.json == {"queues": ["mine/one"], "next": "mine/one"}
                parts = [read.copy()]
                refused = await served.ask("PUT", "/v1/queues/mine/three", Authorization=auth)
                assert (refused.status, refused.code) == (429, "too_many_requests")
                parts.append(read.copy())
                assert b"orders" in (await azure.ask("GET", "?comp=list")).body
                costs.append([*parts, read])
    assert costs[0] == costs[1]
