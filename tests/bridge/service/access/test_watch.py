"""The access file as careless and hostile hands leave it: what was revoked ends, whatever happens to the file."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
from collections.abc import Iterator

import msgspec
import pytest

from bridge.contract.errors import ConfigurationError
from bridge.core.grants import Verb
from bridge.core.issuer import IssuerSettings
from bridge.core.keys import Identity, without
from bridge.core.limits import Allowance, Limits
from bridge.core.sans import Certificate
from bridge.service.access import access_file
from bridge.service.access.watch import AccessWatch, Leave
from bridge.service.looking import Looking
from tests.support.access import NOW, listed, written

GRANTS = {"one": {"take": ["a/x"]}, "two": {"take": ["a/x"]}}


def revoke(path: pathlib.Path, name: str) -> None:
    """End the keys of a principal."""
    access_file.change(path, lambda found: without(found, name)[0])


def trouble(watch: AccessWatch) -> str | None:
    """Return why the file cannot be used now."""
    return watch.trouble


def opened(watch: AccessWatch, secret: str, ended: list[str]) -> Identity:
    """Open something by the leave of a key."""
    identity = watch.identify(secret)
    assert identity is not None
    watch.leave(identity, Verb.TAKE, lambda _: ended.append(identity.principal.name)).refused(["a/x"])
    return identity


def test_a_file_that_was_closed_again_is_read(tmp_path: pathlib.Path) -> None:
    """The refusal says `chmod 600`, which changes no byte of the file."""
    path = tmp_path / "access.json"
    secrets = written(path, GRANTS)
    watch = AccessWatch(path)
    assert trouble(watch) is None
    revoke(path, "one")
    path.chmod(0o644)
    watch.look()
    assert watch.trouble is not None
    assert "chmod 600" in watch.trouble
    assert watch.identify(secrets["one"]) is not None
    path.chmod(0o600)
    watch.look()
    assert trouble(watch) is None
    assert watch.identify(secrets["one"]) is None


def test_a_revocation_waits_for_no_second_change(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that has no file left, as under a flood of connections, reads it as soon as it can."""
    path = tmp_path / "access.json"
    secrets, ended = written(path, GRANTS), list[str]()
    watch = AccessWatch(path)
    opened(watch, secrets["one"], ended)
    revoke(path, "one")

    def none_left(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        patched.setattr(pathlib.Path, "open", none_left)
        for _ in range(3):
            watch.look()
            assert caplog.messages == [f"{watch.trouble}; what it said before holds until it can be read"]
    assert "Too many open files" in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert ended == []
    caplog.set_level("INFO", "queuebell.access")
    caplog.clear()
    for _ in range(3):
        watch.look()
    assert [(record.getMessage(), vars(record)["keys"]) for record in caplog.records] == [("access list read again", 1)]
    assert ended == ["one"]
    assert watch.identify(secrets["one"]) is None


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


def test_what_cannot_be_ended_in_order_spares_nobody_else(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything else that the key had opened ends, and the log has what failed."""
    path = tmp_path / "access.json"
    secrets, ended = written(path, GRANTS), list[str]()
    watch = AccessWatch(path)

    def fails(_: str) -> None:
        raise ValueError("a fault of our own")

    opened(watch, secrets["one"], ended)
    first = watch.identify(secrets["one"])
    assert first is not None
    watch.leave(first, Verb.TAKE, fails)
    opened(watch, secrets["one"], ended)
    revoke(path, "one")
    watch.look()
    assert ended == ["one", "one"]
    assert not watch.leaves
    assert "a fault of our own" in caplog.text


def test_what_is_opened_while_its_key_is_revoked_ends(tmp_path: pathlib.Path) -> None:
    """A session whose handshake waits for its peer is open only after the list was read anew: it ends all the same."""
    path = tmp_path / "access.json"
    secrets, ended = written(path, GRANTS), list[str]()
    watch = AccessWatch(path)
    late = watch.identify(secrets["one"])
    assert late is not None
    opened(watch, secrets["two"], ended)
    revoke(path, "one")
    watch.look()
    watch.leave(late, Verb.TAKE, lambda _: ended.append("one"))
    watch.look()
    assert ended == ["one"]


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


def test_a_link_to_a_good_file_is_followed_and_kept(tmp_path: pathlib.Path) -> None:
    """As a mounted secret is; what is written replaces its target."""
    target, link = tmp_path / "real" / "access.json", tmp_path / "access.json"
    secrets = written(target, GRANTS)
    link.symlink_to(target)
    watch = AccessWatch(link)
    revoke(link, "one")
    watch.look()
    assert link.is_symlink()
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


def test_ten_thousand_sessions_are_looked_at_when_something_changed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no look asks about any of them while nothing has: what it costs does not grow with them."""
    path = tmp_path / "access.json"
    secrets, ended = written(path, GRANTS), list[str]()
    watch = AccessWatch(path)
    for number in range(10_000):
        opened(watch, secrets["one" if number % 100 == 0 else "two"], ended)
    asked = 0

    class Counting(dict[Leave, None]):
        def __iter__(self) -> Iterator[Leave]:
            nonlocal asked
            asked += 1
            return super().__iter__()

    monkeypatch.setattr(watch, "leaves", Counting(watch.leaves))
    for _ in range(10):
        watch.look()
    assert (asked, ended) == (0, [])
    revoke(path, "one")
    watch.look()
    assert ended == ["one"] * 100
    assert len(watch.leaves) == 9_900


def test_what_is_open_ends_with_the_queues_that_it_is_about(tmp_path: pathlib.Path) -> None:
    """Whatever else its holder may do; before it is about any, with the verb."""
    path, ended = tmp_path / "access.json", list[str]()
    secrets = written(path, {"one": {"take": ["a/x", "a/y"], "look": ["*"]}})
    watch = AccessWatch(path)
    identity = watch.identify(secrets["one"])
    assert identity is not None
    leaves = {name: watch.leave(identity, Verb.TAKE, lambda _, name=name: ended.append(name)) for name in "xyn"}
    assert leaves["x"].refused(["a/x"]) is None
    assert leaves["y"].refused(["a/x"]) is None
    assert leaves["y"].refused(["a/y"]) is None
    assert leaves["y"].refused(["a/y", "a/z"]) == "a/z"
    assert leaves["y"].queues == {"a/y"}
    grant(path, take=["a/y"], look=["*"])
    watch.look()
    assert ended == ["x"]
    grant(path, look=["*"])
    watch.look()
    assert ended == ["x", "y", "n"]
    watch.look()
    assert ended == ["x", "y", "n"]


def grant(path: pathlib.Path, **grants: list[str]) -> None:
    """Replace the grants of one."""
    access_file.change(path, lambda found: msgspec.structs.replace(found, principals={"one": grants}))


def test_what_is_opened_while_its_grant_goes_ends(tmp_path: pathlib.Path) -> None:
    """As where its key went: the key is good still, and it may do something else."""
    path, ended = tmp_path / "access.json", list[str]()
    secrets = written(path, {"one": {"take": ["*"]}})
    watch = AccessWatch(path)
    late = watch.identify(secrets["one"])
    assert late is not None
    grant(path, look=["*"])
    watch.look()
    watch.leave(late, Verb.TAKE, lambda _: ended.append("one"))
    watch.look()
    assert ended == ["one"]


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


def test_an_instance_is_called_by_its_principal_and_its_name(tmp_path: pathlib.Path) -> None:
    """Always alike, as an instance may be called, and never as that of anybody else."""
    path = tmp_path / "access.json"
    secrets = written(path, GRANTS)
    watch = AccessWatch(path)
    named = set[str]()
    for who in ("one", "two"):
        identity = watch.identify(secrets[who])
        assert identity is not None
        for given in ("1" * 32, "2" * 32):
            name = watch.leave(identity, Verb.TAKE, lambda _: None).instance(given)
            assert name == watch.leave(identity, Verb.LOOK, lambda _: None).instance(given)
            assert len(name) == 32
            named.add(name)
    assert len(named) == 4


def test_a_key_and_a_certificate_end_by_the_clock(tmp_path: pathlib.Path) -> None:
    """By the bridge's own."""
    path, now = tmp_path / "access.json", NOW
    found, secrets = listed({"one": {"take": ["*"]}}, expires_at=NOW + 10)
    access_file.change(path, lambda _: msgspec.structs.replace(found, certificates={"one": ["DNS:one"]}))
    watch = AccessWatch(path, wall=lambda: now)
    shown = Certificate(frozenset({"DNS:one"}), NOW + 20)
    for later, by_key, by_certificate in ((9, True, True), (10, False, True), (19, False, True), (20, False, False)):
        now = NOW + later
        assert (watch.identify(secrets["one"]) is not None) is by_key
        assert (watch.identify_certificate(shown) is not None) is by_certificate
    assert watch.identify_certificate(Certificate(frozenset({"DNS:two"}), NOW + 99)) is None


def test_what_somebody_uses_is_counted_through_a_change_of_the_list(tmp_path: pathlib.Path) -> None:
    """Once for each principal, against the limits that hold by then."""
    path = tmp_path / "access.json"
    written(path, GRANTS)
    watch = AccessWatch(path)

    def allowance(name: str) -> Allowance:
        principal = watch.principal(name)
        assert principal is not None
        return watch.allowance(principal)

    used = allowance("one")
    assert used.connect()
    assert used.connect()
    access_file.change(path, lambda found: msgspec.structs.replace(found, limits={"one": Limits(connections=2)}))
    watch.look()
    assert allowance("one") is used
    assert not used.connect()
    assert allowance("two") is not used
    assert allowance("two").connect()
    assert watch.principal("nobody") is None


def test_tokens_without_what_checks_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An issuer that nobody could check is refused at the start, with the command that installs it."""
    path = tmp_path / "access.json"
    written(path, GRANTS)
    issuer = IssuerSettings(issuer="https://id.example/", audience="queuebell", jwks="/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jwt" else name)
    with pytest.raises(ConfigurationError, match=r"what checks tokens is not installed: .*\bjwt\b"):
        AccessWatch(path, issuers=[issuer])
    AccessWatch(path)
