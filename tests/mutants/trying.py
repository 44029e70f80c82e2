"""A pytest plugin that tries mutants: all tests are collected once, and each mutant is tried in a fork of that.

A session of pytest for each mutant, as mutmut would have it, spends nine tenths of its time with collecting.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import json
import math
import os
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable

import hypothesis
import pytest

from tests.mutants.reached import VARIABLE

PROCESSOR_S = 12
"""Of one test; those that are run against mutants take six at most. An endless loop ends here."""
WAIT_S = 25
"""Of one test by the clock, beside ten times what it takes without a mutant: an endless wait ends here."""
MEMORY_BYTES = 4 << 30
"""An endless loop that keeps what it makes ends here."""
BUDGET_S = 10.0
"""Of all tests of one mutant, as the survey counts, which takes three times as long: the quickest that fit are run."""
SAVED_EVERY_S = 10.0
UNFIT = "fails without a mutant, and has no say: "
SUBREAPER = 36
Tests = list[tuple[int, int]]
"""Places of tests, each with the seconds that it may wait."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take how many at a time, whether processes count, and which; none named: those that were not tried."""
    parser.addoption("--jobs", type=int)
    parser.addoption("--processes", action="store_true")
    parser.addoption("--mutant", action="append", default=[])


def pytest_configure() -> None:
    """Try few examples, which never change."""
    hypothesis.settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=25,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # nobody reads the shortest example
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("mutants")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run all tests without a mutant, then those that reach its function against each."""
    if session.testsfailed:
        raise session.Failed("the tests cannot be collected")
    gc.collect()
    gc.freeze()
    reached = pathlib.Path("reached.json").absolute()
    reached.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        code = os.waitstatus_to_exitcode(os.waitpid(_forked(lambda: _survey(session, reached), folder), 0)[1])
    if code:
        raise session.Failed(f"the tests do not pass without a mutant ({code})")
    options = session.config.option
    _try_all(session, json.loads(reached.read_text()), options.jobs, options.mutant)
    return True


def _forked(run: Callable[[], int], folder: str) -> int:
    """Run it in a child, whose exit code is what it returns, and 70 if it cannot: that says nothing of a mutant.

    Its tests keep their files in ``folder``, which the caller removes: a child that ends at once leaves gigabytes.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _survey(session: pytest.Session, reached: pathlib.Path) -> int:
    """Find out which functions each test reaches, and how long it takes; a test that fails is left out."""
    from mutmut.mutation import trampoline

    reaching: set[str] = set()
    trampoline.set_mutant_under_test("stats")
    trampoline.record_trampoline_hit = lambda name, caller=None: reaching.add(name)
    elsewhere = reached.with_name("reached-elsewhere.txt")
    elsewhere.write_text("")
    if session.config.option.processes:
        trampoline.get_mutant_under_test = lambda: "stats"
        os.environ |= {"MUTANT_UNDER_TEST": "", VARIABLE: str(elsewhere)}
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))  # as later: what needs more has no say
    tests: dict[str, list[tuple[float, int]]] = defaultdict(list)
    waits: dict[int, int] = {}
    for place, item in enumerate(session.items):
        reaching.clear()
        began, began_at = _spent(), time.monotonic()
        failed = session.testsfailed
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=_after(session.items, place))
        if session.testsfailed > failed:
            sys.stderr.write(f"{UNFIT}{item.nodeid}\n")
            continue
        waits[place] = WAIT_S + math.ceil(10 * (time.monotonic() - began_at))
        reaching |= {*elsewhere.read_text().split()}
        elsewhere.write_text("")
        for name in reaching:
            tests[name].append((_spent() - began, place))
    chosen = {name: _by_module(session, _quickest(sorted(found))) for name, found in tests.items()}
    reached.write_text(
        json.dumps({name: [(place, waits[place]) for place in places] for name, places in chosen.items()})
    )
    return 0


def _spent() -> float:
    """Return the processor time of this process and of those that it started and that ended."""
    return sum(os.times()[:4])


def _quickest(found: list[tuple[float, int]]) -> list[int]:
    """Return the places of the tests that fit; one at least."""
    spent = list(itertools.accumulate(seconds for seconds, _ in found))
    return [place for (_, place), so_far in zip(found, spent, strict=True) if so_far <= max(BUDGET_S, spent[0])]


def _by_module(session: pytest.Session, places: list[int]) -> list[int]:
    """Keep the tests of a module together, so that its server starts once; that of the quickest comes first."""
    first: dict[pathlib.Path, int] = {}
    for rank, place in enumerate(places):
        first.setdefault(session.items[place].path, rank)
    return sorted(places, key=lambda place: first[session.items[place].path])


def _after(items: list[pytest.Item], place: int) -> pytest.Item | None:
    return items[place + 1] if place + 1 < len(items) else None


def _try_all(session: pytest.Session, tests: dict[str, Tests], jobs: int, only: list[str]) -> None:
    metas = {file: json.loads(file.read_text()) for file in sorted(pathlib.Path().rglob("*.meta"))}
    codes = {name: meta["exit_code_by_key"] for meta in metas.values() for name in meta["exit_code_by_key"]}
    running: dict[int, tuple[str, str]] = {}
    saved = time.monotonic()

    def save() -> None:
        for file, meta in metas.items():
            file.write_text(json.dumps(meta))

    # A mutant that is killed leaves servers to its parent.
    ctypes.CDLL(None).prctl(SUBREAPER, 1)

    def reap() -> None:
        pid, status = os.wait()
        if pid in running:
            name, folder = running.pop(pid)
            codes[name][name] = os.waitstatus_to_exitcode(status)
            shutil.rmtree(folder, ignore_errors=True)

    untried = only or [name for name, code in codes.items() if code[name] is None]
    for count, name in enumerate(untried):
        places = tests.get(name.partition("__mutmut_")[0], [])
        if not places:
            codes[name][name] = 33
            continue
        while len(running) >= jobs:
            reap()
        folder = tempfile.mkdtemp(prefix="mutant-")
        running[_forked(lambda name=name, places=places: _try(session, name, places), folder)] = (name, folder)
        if time.monotonic() - saved > SAVED_EVERY_S:
            saved = time.monotonic()
            save()
            sys.stderr.write(f"{count} of {len(untried)}\n")
    while running:
        reap()
    save()
    for child in pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)


def _try(session: pytest.Session, name: str, places: Tests) -> int:
    """Run these tests against a mutant, the quickest first, up to the first that fails; 1 if there is one."""
    from mutmut.mutation import trampoline

    trampoline.set_mutant_under_test(name)
    # As it is, it looks into the environment at each call of each function.
    trampoline.get_mutant_under_test = lambda: name
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    items = [session.items[place] for place, _ in places]
    for place, (item, (_, wait_s)) in enumerate(zip(items, places, strict=True)):
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + PROCESSOR_S, resource.RLIM_INFINITY))
        signal.alarm(wait_s)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=_after(items, place))
        except (KeyboardInterrupt, pytest.exit.Exception):
            return _caught(session)
        if session.testsfailed:
            return _caught(session)
    return 0


def _caught(session: pytest.Session) -> int:
    """End what fixtures started, which would outlive this process."""
    signal.alarm(WAIT_S)
    with contextlib.suppress(Exception):
        session._setupstate.teardown_exact(None)
    return 1
