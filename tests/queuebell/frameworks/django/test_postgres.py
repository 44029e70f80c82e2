"""Tasks in the transactions of Django's own PostgreSQL database, and the same tests with Django 6."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.queues.postgres.schema import init
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.queuebell.frameworks.django.shop import TABLE, Shop
from tests.support.postgres import PostgresServer, execute
from tests.support.processes import ROOT, Processes, environment, until

__all__ = ["schema", "server", "url"]
pytestmark = pytest.mark.system
INSTALL_S = 1500.0
TOOLS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")
ALL_OTHERS = ("-m", "", "-k", "not with_django_6")


async def shop_on(server: PostgresServer, schema: str, url: str, processes: Processes) -> Shop:
    await init(url, notify=True)
    await execute(url, TABLE.format(serial="serial"))
    bridge = await processes.serve("--postgres", url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "HOST": "127.0.0.1",
        "PORT": server.port,
        "USER": "postgres",
        "OPTIONS": {"options": f"-csearch_path={schema}"},
        "CONN_MAX_AGE": None,
    }
    return Shop(processes, bridge, database, {"store": url, "bridge": bridge.url, "database": "default"})


async def test_a_task_is_there_if_its_transaction_is(
    server: PostgresServer, schema: str, url: str, processes: Processes
) -> None:
    """A commit has it there and wakes the worker; a rollback, of a savepoint too, and a failure leave none."""
    shop = await shop_on(server, schema, url, processes)
    worker = await shop.worker()
    await shop.bridge.has_listeners(1)
    refused = await shop.run(
        """
import asyncio, datetime
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone
def rolled_back():
    raise ZeroDivisionError
client = Client(raise_request_exception=False)
assert client.get("/orders/1/?within").status_code == 202
assert client.get("/orders/2/?within&fail").status_code == 500
charge.enqueue(3)
asyncio.run(charge_async.aenqueue(4))
with transaction.atomic():
    charge.enqueue(5)
    try:
        with transaction.atomic():
            charge.enqueue(6)
            rolled_back()
    except ZeroDivisionError:
        pass
    soon = timezone.now() + datetime.timedelta(seconds=0.1)
    charge.using(run_after=soon).enqueue(7)
    try:
        charge.using(run_after=soon + datetime.timedelta(days=8)).enqueue(8)
    except ValueError as error:
        told = [error.code]
    charge.enqueue(9)
try:
    with transaction.atomic():
        charge.enqueue(10)
        try:
            Order.objects.create(number=1)
        except IntegrityError:
            charge.enqueue(11)
except ValueError as error:
    told.append(error.code)
print(json.dumps(told))
"""
    )
    assert refused == ["bad_parameter", "transaction_failed"]

    async def empty() -> bool:
        return await execute(url, "SELECT count(*) FROM queuebell_messages") == [(0,)]

    await until(empty, "all are done")
    assert sorted(each["number"] for each in shop.told("charged")) == [1, 3, 4, 5, 7, 9]
    assert await execute(url, "SELECT number, charged FROM shop_order") == [(1, 1)]
    of_tasks = "query LIKE '%shop_order%' AND pid <> pg_backend_pid()"
    assert await execute(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {of_tasks}")
    await shop.run("charge.enqueue(1)")
    await until(empty, "a connection that broke is mended by the next attempt")
    assert await execute(url, "SELECT number, charged FROM shop_order") == [(1, 2)]
    assert await worker.stop() == 0, worker.errors


async def test_a_database_without_tables_is_refused(
    server: PostgresServer, schema: str, url: str, processes: Processes
) -> None:
    """In clear words, and the caller's transaction goes on."""
    shop = await shop_on(server, schema, url, processes)
    told = await shop.run(
        """
from django.db import connection, transaction
from django.test import override_settings
given = dict(tasks.task_backends.settings["default"])
given["OPTIONS"] = {**given["OPTIONS"], "store": given["OPTIONS"]["store"].replace("search_path=", "search_path=no")}
with override_settings(TASKS={"default": given}), transaction.atomic():
    Order.objects.create(number=1)
    try:
        charge.enqueue(1)
    except ValueError as error:
        print(json.dumps([error.code, str(error)]))
"""
    )
    assert told[0] == "wrong_database" and told[1].startswith("django/default: nothing was put: there are no tables")
    assert await execute(url, "SELECT number FROM shop_order") == [(1,)]


def python_3_12() -> str:
    """Find a Python that Django 6 runs on: this one, or `python3.12` on the PATH, where pyenv is told which."""
    if sys.version_info >= (3, 12):
        return sys.executable
    found = shutil.which("python3.12")
    assert found is not None, "this test needs python3.12 on the PATH: Django 6 runs on no older one"
    ask = [found, "-c", "import sys; print(sys.executable)"]
    asked = subprocess.run(
        ask, env={**os.environ, "PYENV_VERSION": "3.12"}, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, f"this test needs python3.12, and {found} does not run: {asked.stderr}"
    return asked.stdout.strip()


def locked(*roots: str) -> str:
    """Return what the lock says of some distributions and of all that they need; all of it would take minutes."""
    wanted, asked = set[str](), list(roots)
    while asked:
        name = asked.pop().lower()
        if name not in wanted:
            wanted.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # needed elsewhere only
                needs = importlib.metadata.requires(name) or []
                asked += [_name(need) for need in needs if "extra ==" not in need]
    blocks = re.split(r"^(?=\w)", (ROOT / "requirements-dev.lock").read_text(), flags=re.MULTILINE)
    return "".join(block for block in blocks[1:] if _name(block) in wanted)


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return found[0]


@pytest.mark.timeout(3000)
def test_the_same_with_django_6(tmp_path: Path) -> None:
    """In an environment of Python 3.12 or newer with what the lock has for it: Django's own tasks, not the backport."""
    folder, known = tmp_path / "environment", environment(PIP_NO_COMPILE="1", PYTHONPATH=str(ROOT))
    lock = tmp_path / "lock"
    lock.write_text(locked("queuebell", "django", "asyncpg", "psycopg", "psycopg-binary", *TOOLS))
    python = str(folder / "bin/python")
    for words in (
        [python_3_12(), "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)],
        [python, "-c", "import django.tasks, importlib.util as u; assert u.find_spec('django_tasks') is None"],
        [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *ALL_OTHERS, str(Path(__file__).parent)],
    ):
        done = subprocess.run(
            words, cwd=ROOT, env=known, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-5000:]}{done.stderr[-5000:]}"
    assert "passed" in done.stdout and "skipped" not in done.stdout
