"""``python -m tests.mutants [ROOM ...]``: change one thing at a time in a room, and see whether a test notices.

  python -m tests.mutants                    every room
  python -m tests.mutants contract           one room; again: only what survived before, and what is new
  python -m tests.mutants contract --sample 100 --seed 1
                                             a hundred mutants of it, chosen by the seed and their names
  python -m tests.mutants contract --list    what survived the last run
  python -m tests.mutants contract --show    the same, each with its change
  python -m tests.mutants contract --fresh   forget the last run first

Everything happens in copies below build/mutants. A mutant that only changes the wording of a sentence is not counted.
The exit code is 1 if less than 95 % were caught, or if some could not be tried.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

from tests.mutants.rooms import ROOMS, Room, files
from tests.mutants.trying import UNFIT
from tests.support.command import ROOT

BUILD = ROOT / "build" / "mutants"
COPIED = ("queuebell", "tests", "docs")
"""With folders for the links in `queuebell`, as in a distribution."""
LEAST_PERCENT = 95.0
SAMPLE = 20
PLUGINS = ("tests.mutants.trying", "no:xdist", "no:timeout", "no:cacheprovider")
CAUGHT = ("caught", "ran away")
STATUS = {0: "survived", 1: "caught", 33: "no test", 70: "not tried", None: "not tried"}


def main(arguments: list[str]) -> int:
    """Try, and tell; the exit code as above."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(room.name for room in ROOMS))
    parser.add_argument(
        "--sample",
        type=int,
        nargs="?",
        const=SAMPLE,
        default=0,
        metavar="N",
        help=f"some mutants only (default {SAMPLE})",
    )
    parser.add_argument("--seed", type=int, default=1, help="which mutants a sample takes (default 1)")
    parser.add_argument("--list", action="store_true", help="list what survived the last run")
    parser.add_argument("--show", action="store_true", help="show the change of each as well")
    parser.add_argument("--fresh", action="store_true", help="forget the last run first")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    options = parser.parse_args(arguments)
    unknown = set(options.rooms) - {room.name for room in ROOMS}
    if unknown:
        parser.error(f"no such room: {', '.join(sorted(unknown))}")
    good = True
    for room in [room for room in ROOMS if not options.rooms or room.name in options.rooms]:
        if not (options.list or options.show) or options.fresh:
            if options.fresh:
                shutil.rmtree(BUILD / room.name, ignore_errors=True)
            _prepare(room)
            if options.sample:
                _make(room)
            _try(room, _sample(room, options), options.jobs)
        good = _tell(room, options) and good
    return 0 if good else 1


def _sample(room: Room, options: argparse.Namespace) -> list[str]:
    """Return the mutants of a sample that have not been caught yet; none: all of the room."""
    if not options.sample:
        return []
    found = _found(room)
    chosen = sampled(found, options.sample, options.seed)
    return [name for name in chosen if found[name] not in CAUGHT] or chosen[:1]


def _prepare(room: Room) -> None:
    """Bring the copy of a room up to date; what survived is tried again."""
    folder = BUILD / room.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for stale in ("tests", "docs"):
        shutil.rmtree(folder / "mutants" / stale, ignore_errors=True)
    for file, copy in (("README.md", "README.md"), ("tests/mutants/reached.py", "sitecustomize.py")):
        shutil.copy(ROOT / file, folder / copy)
    (folder / "pyproject.toml").write_text(settings(room), encoding="utf-8")
    tools = folder / ".ci"  # Azurite is there, and takes long to install
    if not tools.exists():
        tools.symlink_to(ROOT / ".ci")
    for file in (folder / "mutants").rglob("*.meta"):
        meta = json.loads(file.read_text())
        found = meta["exit_code_by_key"]
        meta["exit_code_by_key"] = {key: code if status(code) in CAUGHT else None for key, code in found.items()}
        file.write_text(json.dumps(meta))


def path(file: str) -> str:
    """Return where a copy has a file of the checkout."""
    return file if file.startswith("queuebell/") else f"queuebell/{file}"


def settings(room: Room) -> str:
    """Return the pyproject of a copy: no wall clock, no plugin that is of no use to a single test."""
    return f"""[tool.mutmut]
source_paths = ["queuebell"]
only_mutate = {json.dumps([path(file) for file in files(room)])}
also_copy = ["docs", "README.md", "sitecustomize.py"]
use_git_change_detection = false
on_dependency_change = "warn"

[tool.pytest.ini_options]
addopts = ["--import-mode=importlib", "--strict-markers", "-m", {json.dumps(room.marks)}, "-p", "no:schemathesis"]
pythonpath = ["."]
asyncio_mode = "auto"
tmp_path_retention_policy = "failed"
asyncio_default_fixture_loop_scope = "function"
filterwarnings = ["error", "ignore::pytest.PytestConfigWarning"]
markers = ["system: as the room says", "rest: the same", "long: not run here", "timeout: has no say here"]
"""


TRY = """
import os, pathlib, sys
import pytest
from mutmut import __main__ as mutmut
mutmut.set_mutant_under_test("mutant_generation")
pathlib.Path("mutants").mkdir(exist_ok=True)
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.setup_source_paths()
mutmut.create_mutants(2)
if len(sys.argv) > 1:
    mutmut.set_mutant_under_test("")
    os.chdir("mutants")
    sys.exit(pytest.main(sys.argv[1:]))
"""
"""mutmut makes the mutants and says which one is under test; they are tried by a plugin of our own."""
OPTIONS = ("--rootdir=.", "-q", "-s", "--tb=no", *(word for plugin in PLUGINS for word in ("-p", plugin)))


def _make(room: Room) -> None:
    _run(room, [sys.executable, "-c", TRY])


def _try(room: Room, names: Iterable[str], jobs: int) -> None:
    chosen = [f"--mutant={name}" for name in names]
    processes = ["--processes"] if room.processes else []
    _run(room, [sys.executable, "-c", TRY, *OPTIONS, f"--jobs={jobs}", *processes, *chosen, *room.tests])


def _run(room: Room, words: list[str]) -> None:
    log = BUILD / room.name / "last-run.log"
    with log.open("wb") as out:
        done = subprocess.run(words, cwd=BUILD / room.name, stdout=out, stderr=subprocess.STDOUT, check=False)
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(UNFIT):
            _say(line)
    if done.returncode:
        sys.exit(f"{room.name}: mutmut ended with {done.returncode}:\n{log.read_text(errors='replace')[-3000:]}")


def status(code: int | None) -> str:
    """Say what an exit code of pytest, or a signal, means for a mutant."""
    return STATUS.get(code, "ran away")


def _found(room: Room) -> dict[str, str]:
    """Return what became of each mutant of a room."""
    found: dict[str, str] = {}
    for file in sorted((BUILD / room.name / "mutants").rglob("*.meta")):
        for name, code in json.loads(file.read_text())["exit_code_by_key"].items():
            found[name] = status(code)
    return found


def short(name: str) -> str:
    """Return a mutant's name by its folder in the checkout."""
    return name.removeprefix("queuebell.") if name.startswith(("queuebell.bridge.", "queuebell.listeners.")) else name


def sampled(names: Iterable[str], size: int, seed: int) -> list[str]:
    """Choose some by the seed and their names alone, so that the choice stays while the code around changes."""
    return sorted(names, key=lambda name: random.Random(f"{seed} {short(name)}").random())[:size]


class Change:
    """What a mutant does to its function."""

    def __init__(self, before: ast.FunctionDef | ast.AsyncFunctionDef, after: ast.AST) -> None:
        self._before, self._after = before, after

    @property
    def lines(self) -> list[str]:
        """Return the lines that go, and those that come."""
        one, other = (ast.unparse(tree).splitlines()[1:] for tree in (self._before, self._after))
        return [
            line for line in difflib.unified_diff(one, other, n=0, lineterm="") if line[:2] not in ("--", "++", "@@")
        ]

    @property
    def wording(self) -> bool:
        """Return whether it changes a sentence for people, and nothing else: three words or more in quotes."""
        one, other = (
            [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
            for tree in (self._before, self._after)
        )
        differ = [(was, now) for was, now in zip(one, other, strict=False) if was != now]
        if len(one) != len(other) or len(differ) != 1:
            return False
        was, now = differ[0]
        return isinstance(was, str) and isinstance(now, str) and was.count(" ") >= 2


def changes(room: Room, names: Iterable[str]) -> dict[str, Change]:
    """Read from the mutated files what each mutant changes."""
    wanted = {name.rpartition(".")[2] for name in names}
    found: dict[str, Change] = {}
    folder = BUILD / room.name / "mutants"
    for meta in folder.rglob("*.meta"):
        file = meta.with_suffix("")
        module = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        functions = {
            node.name: node
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for name in wanted & functions.keys():
            before = functions[name.rpartition("__mutmut_")[0] + "__mutmut_orig"]
            found[f"{module}.{name}"] = Change(before, functions[name])
    return found


def _tell(room: Room, options: argparse.Namespace) -> bool:
    found = _found(room)
    if options.sample:
        found = {name: found[name] for name in sampled(found, options.sample, options.seed)}
    counts = Counter(found.values())
    survivors = [name for name, what in found.items() if what in ("survived", "no test")]
    made = changes(room, survivors)
    wording = [name for name in survivors if made[name].wording]
    left = [name for name in survivors if name not in wording]
    tried = len(found) - counts["not tried"] - len(wording)
    caught = sum(counts[what] for what in CAUGHT)
    percent = 100 * caught / tried if tried else 0.0
    _say(f"{room.name}: {len(found)} mutants, {caught} of {tried} caught ({percent:.1f} %)")
    _say(f"  {counts['ran away']} of them ran away; {counts['not tried']} were not tried")
    _say(f"  {len(left)} survived, {counts['no test']} of them in functions that no test of the room reaches")
    _say(f"  {len(wording)} more survived that only change a sentence for people: they are not counted")
    if options.list or options.show:
        for name in left:
            _say(f"  {name}: {found[name]}")
            for line in made[name].lines if options.show else ():
                _say(f"    {line}")
    return bool(found) and not counts["not tried"] and percent >= LEAST_PERCENT


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
