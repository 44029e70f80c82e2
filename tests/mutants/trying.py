"""A pytest plugin that tries mutants: all tests are collected once, and each mutant is tried in a fork of that.

A session of pytest for each mutant, as mutmut would have it, spends nine tenths of its time with collecting.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import pathlib
import resource
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable

import hypothesis
import pytest

PROCESSOR_S = 12
"""Of one test; those that are run against mutants take six at most. An endless loop ends here."""
WAIT_S = 120
"""Of one test by the clock: what waits without an end is ended here."""
MEMORY_BYTES = 4 << 30
"""An endless loop that keeps what it makes ends here."""
BUDGET_S = 10.0
"""Of all tests of one mutant, as the survey counts, which takes three times as long: the quickest that fit are run."""
SAVED_EVERY_S = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take how many at a time, and which; none named: those that were not tried."""
    parser.addoption("--jobs", type=int)
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
    code = os.waitstatus_to_exitcode(os.waitpid(_forked(lambda: _survey(session, reached)), 0)[1])
    if code:
        raise session.Failed(f"the tests do not pass without a mutant ({code})")
    options = session.config.option
    _try_all(session, json.loads(reached.read_text()), options.jobs, options.mutant)
    return True


def _forked(run: Callable[[], int]) -> int:
    """Run it in a child, whose exit code is what it returns, and 70 if it cannot: that says nothing of a mutant."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _survey(session: pytest.Session, reached: pathlib.Path) -> int:
    """Find out which functions each test reaches, and how long it takes; 1 if one fails."""
    from mutmut.mutation import trampoline

    reaching: set[str] = set()
    trampoline.set_mutant_under_test("stats")
    trampoline.record_trampoline_hit = lambda name, caller=None: reaching.add(name)
    tests: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for place, item in enumerate(session.items):
        reaching.clear()
        began = time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=_after(session.items, place))
        if session.testsfailed:
            sys.stderr.write(f"fails without a mutant: {item.nodeid}\n")
            return 1
        for name in reaching:
            tests[name].append((time.process_time() - began, place))
    reached.write_text(json.dumps({name: _quickest(sorted(found)) for name, found in tests.items()}))
    return 0


def _quickest(found: list[tuple[float, int]]) -> list[int]:
    """Return the places of the tests that fit; one at least."""
    spent = list(itertools.accumulate(seconds for seconds, _ in found))
    return [place for (_, place), so_far in zip(found, spent, strict=True) if so_far <= max(BUDGET_S, spent[0])]


def _after(items: list[pytest.Item], place: int) -> pytest.Item | None:
    return items[place + 1] if place + 1 < len(items) else None


def _try_all(session: pytest.Session, tests: dict[str, list[int]], jobs: int, only: list[str]) -> None:
    metas = {file: json.loads(file.read_text()) for file in sorted(pathlib.Path().rglob("*.meta"))}
    codes = {name: meta["exit_code_by_key"] for meta in metas.values() for name in meta["exit_code_by_key"]}
    running: dict[int, str] = {}
    saved = time.monotonic()

    def save() -> None:
        for file, meta in metas.items():
            file.write_text(json.dumps(meta))

    def reap() -> None:
        pid, status = os.wait()
        name = running.pop(pid)
        codes[name][name] = os.waitstatus_to_exitcode(status)

    untried = only or [name for name, code in codes.items() if code[name] is None]
    for count, name in enumerate(untried):
        places = tests.get(name.partition("__mutmut_")[0], [])
        if not places:
            codes[name][name] = 33
            continue
        while len(running) >= jobs:
            reap()
        running[_forked(lambda name=name, places=places: _try(session, name, places))] = name
        if time.monotonic() - saved > SAVED_EVERY_S:
            saved = time.monotonic()
            save()
            sys.stderr.write(f"{count} of {len(untried)}\n")
    while running:
        reap()
    save()


def _try(session: pytest.Session, name: str, places: list[int]) -> int:
    """Run these tests against a mutant, the quickest first, up to the first that fails; 1 if there is one."""
    from mutmut.mutation import trampoline

    trampoline.set_mutant_under_test(name)
    # As it is, it looks into the environment at each call of each function.
    trampoline.get_mutant_under_test = lambda: name
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    items = [session.items[place] for place in places]
    for place, item in enumerate(items):
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + PROCESSOR_S, resource.RLIM_INFINITY))
        signal.alarm(WAIT_S)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=_after(items, place))
        except (KeyboardInterrupt, pytest.exit.Exception):
            return 1
        if session.testsfailed:
            return 1
    return 0
