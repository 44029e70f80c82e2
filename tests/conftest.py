"""What holds for every test: no task outlives it or fails unseen, no log line is broken, and each error has a text."""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import hypothesis
import pytest
import pytest_asyncio

from queuebell.bridge.contract.errors import STATUS_BY_CODE, BadInput, QueuebellError
from queuebell.bridge.observe import tracing

HERE = Path(__file__).parent
REST = (
    *("architecture", "bench", "docs", "examples", "growth", "mutants", "readme", "reference"),
    *("exploration/test_mutants.py", "exploration/cluster/test_wrong_turns.py", "simulation/test_simulator.py"),
    *("queuebell/demo", "queuebell/frameworks/test_taskiq_workers.py", "queuebell/frameworks/django/test_worker.py"),
    *("queuebell/frameworks/celery", "queuebell/frameworks/dramatiq", "queuebell/frameworks/django/test_backend.py"),
    *("services/test_cluster_strangers.py", "services/test_nats_cluster.py", "services/test_plain_turns.py"),
    *("services/test_scaler.py", "services/test_scaler_crossed.py", "services/test_signals.py"),
    *("services/test_turns.py", "chaos/test_long_run.py"),
    "queuebell/command/test_completion.py",
)
"""Files and folders whose tests are `rest` as a whole: they are not even collected for `make test`."""

# No verdict by wall clock: a machine that does other things besides makes neither an example nor its test wrong.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")

# No test trusts what the machine trusts. To read all of that is a seventh of a program's start, and tests start
# hundreds of them.
os.environ["SSL_CERT_FILE"] = os.devnull

# A shell starts what it runs in the background with SIGINT ignored, and so would be every program that a test starts
# and then interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


PATH = os.environ["PATH"]
ESSENTIAL = (
    *("basename", "bash", "cat", "chmod", "cp", "cut", "date", "dd", "dirname", "echo", "env", "false", "find"),
    *("git", "grep", "head", "id", "kill", "ln", "ls", "make", "mkdir", "mktemp", "mount", "mv", "printf", "python3"),
    *("rm", "sed", "seq", "setsid", "sh", "sleep", "sort", "stty", "tail", "tar", "tee", "test", "timeout", "touch"),
    *("tr", "true", "uname", "unshare", "wc", "xargs"),
)
"""Programs that every Debian has, besides make and git. A test that needs another is marked `system`."""


@functools.lru_cache(maxsize=1)
def _bare_path() -> str:
    """Return a PATH with the essential programs and what the lock installs, and nothing else."""
    folder = Path(tempfile.mkdtemp(prefix="path-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ESSENTIAL:
        if (found := shutil.which(name, path=PATH)) is not None:
            (folder / name).symlink_to(found)
    return f"{Path(sys.executable).parent}{os.pathsep}{folder}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hide the programs that only some machines have from tests that are not marked `system`."""
    os.environ["PATH"] = PATH if item.get_closest_marker("system") else _bare_path()


@functools.cache
def _is_rest(path: Path) -> bool:
    return any(path.is_relative_to(HERE / name) for name in REST)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out `REST` where its mark is deselected, and files without a mark that is asked for; not what is named."""
    expression = config.option.markexpr
    if collection_path in {Path(config.invocation_params.dir, word.partition("::")[0]) for word in config.args}:
        return None
    if "not rest" in expression and _is_rest(collection_path):
        named = any(_is_rest(Path(config.invocation_params.dir, word.partition("::")[0])) for word in config.args)
        return None if named else True
    wanted = set(re.findall(r"\w+", expression.partition(" and ")[0])) - {"or"}
    if not MARKS.issuperset(wanted) or collection_path.suffix != ".py":
        return None
    if not wanted or ("rest" in wanted and _is_rest(collection_path)):
        return None
    return None if any(_has_mark(collection_path, mark) for mark in wanted) else True


MARKS = frozenset(("system", "rest", "long"))


@functools.cache
def _has_mark(path: Path, mark: str) -> bool:
    """Say whether a file has tests with a mark, or takes some from a module of tests that it imports."""
    text = path.read_text(encoding="utf-8")
    if f"mark.{mark}" in text:
        return True
    modules = re.findall(r"^from (tests\.[\w.]+) import", text, re.MULTILINE)
    files = (HERE.parent / f"{module.replace('.', '/')}.py" for module in modules)
    return any(file.is_file() and _has_mark(file, mark) for file in files)


LONGEST = (
    "test_a_release_of_this_checkout", "test_the_same_with_django_6", "outside_the_file[", "test_what_is_moved",
    "test_c2_a_trigger_on_the_broker", "test_readme.py::test_demo", "test_of_two_bridges_each",
    "test_a_rolling_restart", "test_every_seed_of_several_bridges", "test_older_workers",
    "test_every_seed_of_scalers", "test_no_wake_is_lost_in_any", "test_every_seed_of_pools",
    "test_a_node_goes_that_all", "test_the_pictures", "[F49", "test_ten_thousand_queues", "test_newer_workers",
    "test_a_short_long_run", "test_one_signs_in", "test_at_length[", "test_every_seed_holds",
    "measures_and_leaves_nothing[scale]", "test_its_tests_run", "[F46", "[F41]", "[F47]",
)  # fmt: skip
"""Tests of 20 seconds and more, the longest first. If one began last, the whole run would wait for it alone."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what stands in `REST`; where several processes share the tests, each begins with some of the longest."""
    for item in items:
        if _is_rest(item.path):
            item.add_marker("rest")
    yield
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    ranked = [(rank, item) for item in items for rank, name in enumerate(LONGEST) if name in item.nodeid]
    longest = [item for _, item in sorted(ranked, key=lambda pair: pair[0])]
    if workers > 1 and longest:
        others = [item for item in items if item not in set(longest)]
        # Each process gets one stretch of the list to begin with, and takes from the ends of others afterwards.
        share = -(-len(others) // workers)
        items[:] = [
            item
            for number in range(workers)
            for item in (*longest[number::workers], *others[number * share : (number + 1) * share])
        ]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three for each core: most of what a test takes it waits, for a process to start or for a period to pass."""
    return 3 * (os.cpu_count() or 1)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what the collection made out of every later look for garbage.

    Each test ends with a whole collection; over the modules of all tests that took as long as the tests themselves.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave out as well what a file of tests has loaded, once its last fixture is gone."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


class _Written(logging.LogRecord):
    """A record whose line is written at once: `SafeLogger` keeps it from the code that logs that none can be."""

    failures: ClassVar[list[str]] = []

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        # A test may log what has no text, and libraries what is none.
        if not str(self.name).startswith("queuebell") or Path(self.pathname).is_relative_to(HERE):
            return
        try:
            assert isinstance(self.msg, str)
            self.getMessage()
        except Exception:
            self.failures.append(f"{self.pathname}:{self.lineno}: {self.msg!r} with {self.args!r}")


logging.setLogRecordFactory(_Written)


CODES = {
    *STATUS_BY_CODE,
    # Of puts in a transaction of the caller's, which no server makes.
    *("wrong_database", "no_transaction", "read_only"),
    *("unknown_connection", "transaction_failed", "connection_unusable"),
}


def _made(error: QueuebellError, *parts: object) -> None:
    """Take note of an error of the product that says nothing, or has a code that nobody knows."""
    Exception.__init__(error, *parts)
    maker = sys._getframe(1)
    coded = not isinstance(error, BadInput) or maker.f_locals.get("code", "bad_queue_reference") in CODES
    if coded and parts and isinstance(parts[-1], str) and parts[-1].strip():
        return
    while maker.f_code.co_name == "__init__" and maker.f_back is not None:
        maker = maker.f_back
    if not Path(maker.f_code.co_filename).is_relative_to(HERE):
        _Written.failures.append(f"{maker.f_code.co_filename}:{maker.f_lineno}: {type(error).__name__}{parts}")


QueuebellError.__init__ = _made  # type: ignore[assignment, method-assign]


class _Unseen(logging.Handler):
    """Keeps what asyncio says about failures that nobody looked at."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        # Everything else that asyncio logs as an error is the business of the test itself.
        if "never retrieved" in text or "was destroyed but it is pending" in text:
            self.lines.append(text.replace("\n", " "))


@pytest_asyncio.fixture
async def leaked_tasks() -> AsyncIterator[None]:
    """Fail when tasks are still running after the test and its fixtures: the runner would cancel them unseen."""
    before = asyncio.all_tasks()
    yield
    me = asyncio.current_task()
    for _ in range(10):  # what was cancelled just now may end; what waits for anything else may not
        await asyncio.sleep(0)
    left = sorted(repr(task) for task in asyncio.all_tasks() - before if task is not me and not task.done())
    assert not left, f"the test left tasks running: {left}"


def _own_handlers() -> list[logging.Handler]:
    return [handler for handler in logging.getLogger().handlers if not type(handler).__module__.startswith("_pytest")]


@pytest.fixture(autouse=True)
def clean_tasks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Watch every test for leaked tasks, unseen exceptions, broken lines of the log, and errors that say nothing."""
    _Written.failures.clear()
    unseen = _Unseen()
    log = logging.getLogger("asyncio")
    log.addHandler(unseen)
    handlers = _own_handlers()
    # Itself synchronous, so that tests without a loop need none.
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("leaked_tasks")
    yield
    gc.collect()  # a failed task sits in a cycle with its traceback; its complaint comes when it is collected
    log.removeHandler(unseen)
    left, tracing.on = tracing.on, None
    assert left is None, "the test left tracing enabled"
    assert _own_handlers() == handlers, "the test left a handler of the log"
    assert not unseen.lines, f"failures of tasks that nobody saw: {unseen.lines}"
    assert not _Written.failures, f"broken lines of the log or silent errors: {_Written.failures}"
