"""The access file: closed to others, replaced whole, and never half of two (S38)."""

from __future__ import annotations

import concurrent.futures
import errno
import json
import os
import pathlib
import stat

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bridge.contract.errors import ConfigurationError
from bridge.core.grants import Verb
from bridge.core.keys import Access, AccessList, new_key
from bridge.core.limits import Limits
from bridge.service.access import access_file
from tests.support.access import NOW, listed, secret_of

GRANTS = {"one": {"put": ["a/x"]}}


def test_what_is_written_is_read_and_closed_to_others(tmp_path: pathlib.Path) -> None:
    """Mode 600 from its first byte on, in a folder that is made for it."""
    path = tmp_path / "very" / "deep" / "access.json"
    found, _ = listed(GRANTS)
    assert access_file.change(path, lambda before: found if before == AccessList() else before) == found
    assert access_file.read(path) == found
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith('{\n  "version": 1,\n  "principals": {\n    "one": {\n')
    assert path.read_text().endswith("\n}\n")
    assert {each.name for each in path.parent.iterdir()} == {"access.json", "access.json.lock"}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_file_that_others_can_reach_is_refused(tmp_path: pathlib.Path, mode: int) -> None:
    """With the command that closes it: who can write it can give themselves everything."""
    path = tmp_path / "access.json"
    access_file.change(path, lambda _: listed(GRANTS)[0])
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


def test_a_change_that_is_refused_changes_nothing(tmp_path: pathlib.Path) -> None:
    """The step's own error comes out, and the file is as it was."""
    path = tmp_path / "access.json"
    found = access_file.change(path, lambda _: listed(GRANTS)[0])
    with pytest.raises(ConfigurationError, match="nothing is granted"):
        access_file.change(path, lambda before: new_key(before, "x", {}, chance=secret_of(5), now=NOW)[0])
    assert access_file.read(path) == found


def test_through_a_link(tmp_path: pathlib.Path) -> None:
    """A link stays one: what it names is replaced."""
    real = tmp_path / "real.json"
    access_file.change(real, lambda _: listed(GRANTS)[0])
    link = tmp_path / "access.json"
    link.symlink_to(real)
    access_file.change(link, lambda _: AccessList())
    assert link.is_symlink()
    assert access_file.read(real) == AccessList()


def test_two_that_change_it_at_once_both_did(tmp_path: pathlib.Path) -> None:
    """One after the other, so that no key is lost; whoever reads meanwhile finds a whole list."""
    path = tmp_path / "access.json"
    access_file.change(path, lambda _: listed(GRANTS)[0])

    def one_more(number: int) -> int:
        access_file.change(path, lambda found: new_key(found, "one", {}, chance=secret_of(number), now=NOW)[0])
        return len(access_file.read(path).keys)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert max(pool.map(one_more, range(10, 42))) == 33
    assert len(access_file.read(path).keys) == 33


WHOLE = msgspec.json.encode(
    AccessList(
        principals={"one": {"put": ["a/x"]}},
        keys=listed(GRANTS)[0].keys,
        limits={"one": Limits(puts_per_second=5)},
        certificates={"one": ["DNS:one.internal"]},
    )
)
SECRET = listed(GRANTS)[1]["one"]
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(b"")
@example(WHOLE)
@example(WHOLE.replace(b'"one"', b'"one\\u0000"'))
@example(WHOLE.replace(b'"a/x"', b'"a/x\\n"'))
@example(WHOLE.replace(b'"a/x"', b'"*/x","a/**","a/*x","**"'))
@example(b"[" * 5000)
@example(WHOLE.replace(b'"version":1', b'"version":' + b"9" * 5000))
@given(
    st.binary(max_size=60)
    | st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 12), st.binary(max_size=6)).map(
        lambda cut: WHOLE[: cut[0]] + cut[2] + WHOLE[cut[0] + cut[1] :]
    )
    | st.tuples(st.sampled_from(["version", "principals", "keys", "limits", "certificates", "key"]), _json).map(
        lambda put: msgspec.json.encode({**json.loads(WHOLE), put[0]: put[1]})
    )
)
def test_whatever_stands_in_the_file(tmp_path: pathlib.Path, raw: bytes) -> None:
    """It is refused in one way, or grants what its patterns say; a slip of the pen never grants all."""
    path = tmp_path / "access.json"
    path.write_bytes(raw)
    path.chmod(0o600)
    try:
        found, refused = access_file.read(path), ""
    except ConfigurationError as error:
        found, refused = AccessList(), str(error)
    assert not refused or ("access: " in refused and listed(GRANTS)[0].keys[0].sha256 not in refused)
    identity = Access(found).identify(SECRET, NOW)
    if identity is not None:
        grants = json.loads(raw)["principals"][identity.principal.name]
        assert not any(identity.principal.may(verb, "b/y") for verb in Verb if "*" not in grants.get(verb.value, ()))


def test_a_file_of_the_greatest_size(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is read to its last byte; a larger one is refused for that, and not for what its beginning says."""
    path = tmp_path / "access.json"
    found = access_file.change(path, lambda _: listed(GRANTS)[0])
    raw = path.read_bytes().strip()
    path.write_bytes(raw)
    monkeypatch.setattr(access_file, "_BYTES_MAX", len(raw))
    assert access_file.read(path) == found
    path.write_bytes(raw + b"\n")
    with pytest.raises(ConfigurationError, match=f"{path} is larger than {len(raw)} bytes, and is no access file"):
        access_file.read(path)


def test_a_pipe_is_no_access_file(tmp_path: pathlib.Path) -> None:
    """Its name and what it is not are said."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigurationError, match=f"^access: {tmp_path}/pipe is no regular file"):
        access_file.read(tmp_path / "pipe")


def test_a_disk_that_is_full_leaves_the_list_as_it_was(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing beside it; neither does a machine that died half-way keep the next from changing it."""
    path = tmp_path / "access.json"
    found = access_file.change(path, lambda _: listed(GRANTS)[0])

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
