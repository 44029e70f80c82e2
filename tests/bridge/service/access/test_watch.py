"""The access file: it is followed, closed to others and replaced whole (S38), and its listing shows what is granted."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
from typing import Any

import pytest

from bridge.contract.errors import ConfigurationError
from bridge.core.grants import Reach, Verb
from bridge.core.issuer import IssuerSettings
from bridge.core.keys import AccessList, with_terms, without
from bridge.service.access import access_file, listing
from bridge.service.access.listing import CALLS_MAX, READ_AT_ONCE, Row
from bridge.service.access.watch import AccessWatch, Leave
from bridge.service.looking import Looking
from tests.support.access import listed, written
from tests.support.azure import ACCOUNT, serving_azure
from tests.support.web import Served, serving

GRANTS = {"one": {"take": ["a/x"]}, "two": {"take": ["a/x"]}}


def revoke(path: pathlib.Path, name: str) -> None:
    """End the keys of a principal."""
    access_file.change(path, lambda found: without(found, name)[0])


def trouble(watch: AccessWatch) -> str | None:
    """Return why the file cannot be used now."""
    return watch.trouble


def test_whatever_keeps_the_bridge_from_reading_it_is_over_some_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what nobody foresaw, memory that is short say: what was revoked meanwhile must not wait for a change."""
    path = tmp_path / "access.json"
    secrets = written(path, GRANTS)
    watch = AccessWatch(path)
    revoke(path, "one")

    def short(_: pathlib.Path) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(access_file, "read", short)
        with pytest.raises(MemoryError):
            watch.look()
    watch.look()
    assert watch.identify(secrets["one"]) is None


@pytest.mark.parametrize("way", ["gone", "empty", "pipe", "folder", "broken link", "loop of links", "huge"])
def test_what_the_file_is_replaced_by(way: str, tmp_path: pathlib.Path) -> None:
    """Nothing of it is waited for or believed: what was said before holds, and a good file is taken up again."""
    path = tmp_path / "access.json"
    secrets = written(path, GRANTS)
    watch = AccessWatch(path)
    good = path.rename(tmp_path / "good")
    if way == "empty":
        path.touch(0o600)
    elif way == "pipe":
        os.mkfifo(path, 0o600)
    elif way == "folder":
        path.mkdir(0o700)
    elif way == "broken link":
        path.symlink_to(tmp_path / "nowhere")
    elif way == "loop of links":
        path.symlink_to(path)
    elif way == "huge":
        path.touch(0o600)
        os.truncate(path, 1 << 40)
    watch.look()
    assert watch.trouble is not None
    assert watch.identify(secrets["one"]) is not None
    with pytest.raises(ConfigurationError):
        AccessWatch(path)
    if way in ("empty", "pipe", "folder", "huge"):
        with pytest.raises(ConfigurationError):
            access_file.change(path, lambda found: found)
    if path.is_dir():
        path.rmdir()
    access_file.change(good, lambda found: without(found, "one")[0])
    path.unlink(missing_ok=True)
    path.symlink_to(good)
    watch.look()
    assert trouble(watch) is None
    assert watch.identify(secrets["one"]) is None


def test_root_leaves_the_file_to_its_owner(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sudo queuebell key revoke` must not take it from the bridge's own user, who could not read the revocation."""
    path = tmp_path / "access.json"
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given.append((user, group)))
    written(path, GRANTS)
    revoke(path, "one")
    mine = (path.stat().st_uid, path.stat().st_gid)
    assert given == [(tmp_path.stat().st_uid, tmp_path.stat().st_gid), mine]
    stat = pathlib.Path.stat

    def of_another(of: pathlib.Path, **more: bool) -> os.stat_result:
        found = stat(of, **more)
        return os.stat_result([*found[:4], 71, 72, *found[6:10]]) if of == path else found

    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "stat", of_another)
        access_file.change(path, lambda found: found)
    assert given.pop() == (71, 72)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    revoke(path, "two")
    assert len(given) == 2


async def test_a_look_that_fails_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever looks no more would go on letting in whom somebody has revoked."""
    monkeypatch.setattr("bridge.service.looking.LOOK_S", 0.001)
    looked = asyncio.Semaphore(0)

    class Failing(Looking):
        def look(self) -> None:
            looked.release()
            raise ValueError("a fault of our own")

    async with asyncio.timeout(100), Failing():
        for _ in range(3):
            await looked.acquire()
    assert "a fault of our own" in caplog.text


def test_an_end_that_closes_others(tmp_path: pathlib.Path) -> None:
    """Of the same connection, say: they are closed by then, and their own end finds nothing left to do."""
    path = tmp_path / "access.json"
    secrets = written(path, GRANTS)
    watch = AccessWatch(path)
    identity = watch.identify(secrets["one"])
    assert identity is not None
    leaves: list[Leave] = []

    def close() -> None:
        for leave in leaves:
            leave.close()

    leaves += [watch.leave(identity, Verb.TAKE, close) for _ in range(2)]
    stays = watch.leave(identity, Verb.TAKE, lambda _: None)
    leaves[0].close()
    leaves[0].close()
    assert list(watch.leaves) == [leaves[1], stays]
    leaves[0] = watch.leave(identity, Verb.TAKE, close)
    revoke(path, "one")
    watch.look()
    assert list(watch.leaves) == []


def test_tokens_without_what_checks_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An issuer that nobody could check is refused at the start, with the command that installs it."""
    path = tmp_path / "access.json"
    written(path, GRANTS)
    issuer = IssuerSettings(issuer="https://id.example/", audience="queuebell", jwks="/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jwt" else name)
    with pytest.raises(ConfigurationError, match=r"what checks tokens is not installed: .*\bjwt\b"):
        AccessWatch(path, issuers=[issuer])
    AccessWatch(path)


GRANTS_ACCESS_FILE = {"one": {"put": ["a/x"]}}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_file_that_others_can_reach_is_refused(tmp_path: pathlib.Path, mode: int) -> None:
    """With the command that closes it: who can write it can give themselves everything."""
    path = tmp_path / "access.json"
    access_file.change(path, lambda _: listed(GRANTS_ACCESS_FILE)[0])
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"others can read or write .*chmod 600 {path}"):
        access_file.read(path)
    with pytest.raises(ConfigurationError, match="others can"):
        access_file.change(path, lambda found: found)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "cannot be used"),
        (b"{", "cannot be used"),
        (b"[]", "cannot be used: Expected `object`"),
        (b"\xff", "cannot be used"),
        (b'{"version": 1, "principal": {}}', "unknown field `principal`"),
        (b'{"principals": {"p": {"take": "a/x"}}}', "cannot be used"),
        (b'{"principals": {"p": {"tkae": ["a/x"]}}}', "no verb is called 'tkae'"),
        (b'{"keys": [{"principal": "p", "sha256": "", "created_at": 0}]}', "sha256 is 64"),
        (b'{"principals": {"p": {}, "q": {}, "p": {"take": ["*"]}}}', "'p' stands twice"),
        (b'{"principals": {"p": {"take": ["a/x"], "take": ["*"]}}}', "'take' stands twice"),
        (b'{"keys": [], "version": 1, "keys": []}', "'keys' stands twice"),
        (b"[" * 100_000, "cannot be used"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: pathlib.Path, raw: bytes, why: str) -> None:
    """By its place and with the reason; nothing of it is taken."""
    path = tmp_path / "access.json"
    path.write_bytes(raw)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=f"access: {path} .*{why}"):
        access_file.read(path)


def test_no_file_and_no_folder(tmp_path: pathlib.Path) -> None:
    """What cannot be read or written says so by its name."""
    with pytest.raises(ConfigurationError, match=r"cannot read .*: No such file"):
        access_file.read(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot write"):
        access_file.change(tmp_path / "file" / "access.json", lambda found: found)


def test_a_disk_that_is_full_leaves_the_list_as_it_was(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing beside it; neither does a machine that died half-way keep the next from changing it."""
    path = tmp_path / "access.json"
    found = access_file.change(path, lambda _: listed(GRANTS_ACCESS_FILE)[0])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ConfigurationError, match=f"cannot write {path}: No space left"):
            access_file.change(path, lambda _: AccessList())
    assert access_file.read(path) == found
    assert {each.name for each in tmp_path.iterdir()} == {"access.json", "access.json.lock"}
    (tmp_path / "access.json.part").write_text("half of it")
    access_file.change(path, lambda _: AccessList())
    assert {each.name for each in tmp_path.iterdir()} == {"access.json", "access.json.lock"}


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
            found, after = await listing.listed(names.read, reach, "", after, 1000, fits)
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
