"""The access file: it is followed, closed to others and replaced whole (S38), and its listing shows what is granted."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib

import pytest

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_file import FileWatch
from queuebell.bridge.access.access_watch import AccessWatch, Permit
from queuebell.bridge.access.grants import Verb
from queuebell.bridge.access.issuer import IssuerSettings
from queuebell.bridge.access.keys import AccessList, with_terms, without
from queuebell.bridge.contract.errors import ConfigurationError
from tests.support.access import listed, written

GRANTS = {"one": {"take": ["a/x"]}, "two": {"take": ["a/x"]}}


def revoke(path: pathlib.Path, name: str) -> None:
    """End the keys of a principal."""
    access_file.change(path, lambda found: without(found, name)[0])


def trouble(watch: AccessWatch) -> str | None:
    """Return why the file cannot be used now."""
    return watch.invalid_reason


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
    watch.check()
    assert watch.invalid_reason is not None
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
    watch.check()
    assert trouble(watch) is None
    assert watch.identify(secrets["one"]) is None


async def test_a_look_that_fails_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever looks no more would go on letting in whom somebody has revoked."""
    monkeypatch.setattr("queuebell.bridge.access.access_file.CHECK_EVERY_S", 0.001)
    looked = asyncio.Semaphore(0)

    class Failing(FileWatch):
        def check(self) -> None:
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
    leaves: list[Permit] = []

    def close() -> None:
        for leave in leaves:
            leave.close()

    leaves += [watch.permit(identity, Verb.TAKE, close) for _ in range(2)]
    stays = watch.permit(identity, Verb.TAKE, lambda _: None)
    leaves[0].close()
    leaves[0].close()
    assert list(watch.permits) == [leaves[1], stays]
    leaves[0] = watch.permit(identity, Verb.TAKE, close)
    revoke(path, "one")
    watch.check()
    assert list(watch.permits) == []


def test_tokens_without_what_checks_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An issuer that nobody could check is refused at the start, with the command that installs it."""
    path = tmp_path / "access.json"
    written(path, GRANTS)
    issuer = IssuerSettings(issuer="https://id.example/", audience="queuebell", jwks="/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jwt" else name)
    with pytest.raises(ConfigurationError, match=r"the package that verifies tokens is not installed: .*\bjwt\b"):
        AccessWatch(path, issuers=[issuer])
    AccessWatch(path)


GRANTS_ACCESS_FILE = {"one": {"put": ["a/x"]}}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_file_that_others_can_reach_is_refused(tmp_path: pathlib.Path, mode: int) -> None:
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
        (b'{"principals": {"p": {"tkae": ["a/x"]}}}', "unknown verb 'tkae'"),
        (b'{"keys": [{"principal": "p", "sha256": "", "created_at": 0}]}', "sha256 must be 64"),
        (b'{"principals": {"p": {}, "q": {}, "p": {"take": ["*"]}}}', "duplicate key 'p'"),
        (b'{"principals": {"p": {"take": ["a/x"], "take": ["*"]}}}', "duplicate key 'take'"),
        (b'{"keys": [], "version": 1, "keys": []}', "duplicate key 'keys'"),
        (b"[" * 100_000, "cannot be used"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: pathlib.Path, raw: bytes, why: str) -> None:
    path = tmp_path / "access.json"
    path.write_bytes(raw)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=f"access: {path} .*{why}"):
        access_file.read(path)


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


def test_each_connection_ends_for_its_own_reason(tmp_path: pathlib.Path) -> None:
    """A revoked key ends with one code, a grant that is gone with another; whatever is still granted goes on."""
    path = tmp_path / "access.json"
    verbs = {"take": ["a/x", "a/y"], "look": ["*"]}
    secrets = written(path, {"gone": verbs, "less": verbs, "same": verbs})
    watch = AccessWatch(path)
    ended: dict[tuple[str, frozenset[str]], str] = {}
    for name, verb, queues in (
        ("same", Verb.TAKE, {"a/x"}),
        ("less", Verb.LOOK, {"a/x"}),
        ("less", Verb.TAKE, {"a/x"}),
        ("less", Verb.TAKE, {"a/y"}),
        ("less", None, set[str]()),
        ("gone", Verb.TAKE, {"a/x"}),
    ):
        identity = watch.identify(secrets[name])
        assert identity is not None
        key = f"{name} {verb}", frozenset(queues)
        permit = watch.permit(identity, verb, lambda code, key=key: ended.__setitem__(key, code))
        if verb is not None:
            assert permit.use_queues(queues) is None
            assert verb is Verb.LOOK or permit.use_queues({"a/x", "b/z"}) == "b/z"
    access_file.change(path, lambda found: with_terms(found, "less", {"take": ["a/y"]}, limits={}))
    revoke(path, "gone")
    watch.check()
    assert ended == {
        ("less Verb.LOOK", frozenset({"a/x"})): "forbidden",
        ("less Verb.TAKE", frozenset({"a/x"})): "forbidden",
        ("gone Verb.TAKE", frozenset({"a/x"})): "unauthenticated",
    }
    assert len(watch.permits) == 3
