"""All public names from one place, whatever a user's own files are called."""

from __future__ import annotations

import pathlib
import pickle
import subprocess
import sys

import pytest

import bridge
import listeners
import queuebell
from bridge.contract import errors
from tests.support.command import ROOT, environment


def test_every_public_name_is_there() -> None:
    """The same objects as in the packages that hold them, and nothing else."""
    for package in (bridge, listeners):
        for name in package.__all__:
            assert getattr(queuebell, name) is getattr(package, name)
    assert set(dir(queuebell)) == {*bridge.__all__, *listeners.__all__}
    with pytest.raises(AttributeError, match="no attribute 'Bell'"):
        _ = queuebell.Bell


def test_what_introspection_asks_for_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of Python's own are not looked for in our packages."""
    monkeypatch.setattr(queuebell, "_package", None)
    assert getattr(queuebell, "__wrapped__", None) is None


def test_all_names_come_at_once() -> None:
    """`from queuebell import *` brings each public name."""
    names: dict[str, object] = {}
    exec("from queuebell import *", names)
    assert {name: names[name] for name in dir(queuebell)} == {name: getattr(queuebell, name) for name in dir(queuebell)}


def test_errors_are_called_what_they_are_imported_as() -> None:
    """A traceback ends with `queuebell.BadInput`, and another process unpickles it from there."""
    public = [getattr(queuebell, name) for name in dir(queuebell)]
    raised = {each for each in public if isinstance(each, type) and issubclass(each, Exception)}
    assert {queuebell.BadInput, queuebell.Bury, queuebell.PartlyPut} < raised
    for each in raised | set(filter(_ours, vars(errors).values())):
        assert each.__module__ == "queuebell", each
        assert pickle.loads(pickle.dumps(each)) is each


def _ours(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, queuebell.QueuebellError)


def test_no_name_stands_for_two_things() -> None:
    """What both packages call alike would be one of them only."""
    assert set(bridge.__all__).isdisjoint(listeners.__all__)


@pytest.mark.parametrize("name", ["listeners", "bridge"])
@pytest.mark.parametrize("kind", ["file", "package", "folder"])
def test_a_package_of_ones_own_is_named(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    """A user's `listeners` hides ours: the error says where it is, and what to do."""
    if kind == "file":
        (tmp_path / f"{name}.py").write_text("mine = 1\n")
    else:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text("mine = 1\n")
    if kind == "package":
        (tmp_path / name / "__init__.py").write_text("mine = 1\n")
    done = subprocess.run(
        [sys.executable, "-c", "from queuebell import Listener"],
        cwd=tmp_path,
        env=environment({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=False,
    )
    # A folder without code is not taken for the package that stands behind it.
    expected = "" if kind == "folder" else f"which is not Queuebell's: a file or folder called {name} comes first"
    assert expected in done.stderr and bool(done.returncode) == bool(expected)
