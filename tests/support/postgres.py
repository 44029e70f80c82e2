"""A real PostgreSQL server for tests: a cluster of its own, on a port of its own."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from queuebell.bridge.brokers.postgres.access import PostgresAccess
from queuebell.bridge.queues.postgres.schema import MIGRATIONS
from tests.support.processes import PATIENCE_S, free_port, until

PATIENCE = f"{PATIENCE_S:.0f}"
LOCAL = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
FAST = {"fsync": "off", "full_page_writes": "off", "max_connections": "60", "shared_buffers": "16MB"}
"""Nobody pulls the plug on a test, and `kill -9` of the server loses nothing that the system was given."""


def is_installed() -> bool:
    """Whether this machine has the package."""
    return bool(_debian()) or shutil.which("initdb") is not None


def _debian() -> list[Path]:
    """Return where Debian's packages keep it, the newest last; nothing where their programs are not on the PATH."""
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb") if shutil.which("pg_lsclusters") else ()
    return sorted(found, key=lambda path: int(path.parts[-3]))


def binaries() -> Path:
    """Where the server's programs are: the newest of those installed."""
    if found := _debian():
        return found[-1].parent
    initdb = shutil.which("initdb")
    assert initdb is not None, "this test needs the package postgresql"
    return Path(initdb).parent


_MADE: list[Path] = []
"""The cluster that all begin as copies of, once a process has made it."""


class PostgresServer:
    """One cluster and its server, which refuses to be root; start it, and stop it in the end.

    With ``primary`` it is a hot standby of a server that runs, until it is promoted.
    """

    def __init__(self, primary: PostgresServer | None = None) -> None:
        # Below /tmp and not where pytest keeps its folders, which nobody but this user may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="queuebell-postgres-", dir="/tmp"))
        self.port = free_port()
        self._bin = binaries()
        self._user = self._other() if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        if primary is None:
            if not _MADE:
                made = self.folder.with_name(f"{self.folder.name}-made")
                self._run("initdb", "-D", str(made), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
                _MADE.append(made)
                atexit.register(shutil.rmtree, made, ignore_errors=True)
            shutil.copytree(_MADE[0], self.data)
            if self._user is not None:
                for path in (self.data, *self.data.rglob("*")):
                    shutil.chown(path, self._user)
        else:
            source = f"host=127.0.0.1 port={primary.port} user=postgres"
            self._run("pg_basebackup", "-D", str(self.data), "-d", source, "-R", "-c", "fast", "--no-sync")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str = "postgres", **options: str) -> str:
        """The address of a database on this server."""
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}" + (f"?{query}" if query else "")

    def start(self) -> None:
        """Start it and return when it takes connections."""
        given = {**FAST, "port": str(self.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        options = " ".join(f"-c {key}='{value}'" for key, value in given.items())
        self._run(
            "pg_ctl", "start", "-w", "-t", PATIENCE, "-D", str(self.data), "-l", str(self.folder / "log"), "-o", options
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast`` in order, ``immediate`` as a crash would."""
        self._run("pg_ctl", "stop", "-w", "-t", PATIENCE, "-m", mode, "-D", str(self.data))

    def promote(self) -> None:
        """Have a standby take writes from now on."""
        self._run("pg_ctl", "promote", "-w", "-t", PATIENCE, "-D", str(self.data))

    def pause(self) -> None:
        """Stop all its processes by SIGSTOP: connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def remove(self) -> None:
        """End it, and take away all that it had."""
        if (self.data / "postmaster.pid").exists():
            self.resume()
            self.stop("immediate")
        shutil.rmtree(self.folder)

    def _signal(self, number: signal.Signals) -> None:
        first = int((self.data / "postmaster.pid").read_text().split()[0])
        # The parent comes first: stopped, it forks no child that the list would miss.
        os.kill(first, number)
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in map(int, children):
            # A worker of the server's own may end between the list and its signal (CI met one).
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _run(self, program: str, *args: str) -> None:
        said = self.folder / "said"
        # Not a pipe: the server would keep it open, and reading it to its end would never end.
        with said.open("wb") as out:
            done = subprocess.run(
                [str(self._bin / program), *args],
                user=self._user,
                cwd=self.folder,
                env=LOCAL,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
            )
        assert done.returncode == 0, f"{program}: {said.read_text('utf-8', 'replace')[-2000:]}"

    @staticmethod
    def _other() -> str:
        for name in ("postgres", "nobody"):
            try:
                return pwd.getpwnam(name).pw_name
            except KeyError:
                continue
        raise AssertionError("root needs the user postgres or nobody to run the server as")


@contextlib.contextmanager
def running(primary: PostgresServer | None = None) -> Iterator[PostgresServer]:
    """A server that runs, and leaves nothing behind."""
    server = PostgresServer(primary)
    try:
        server.start()
        yield server
    finally:
        server.remove()


async def execute(url: str, statement: str, *args: object) -> list[Any]:
    """Carry out one statement on a connection of its own, as a stranger would, and return its rows."""
    connection = await PostgresAccess(url).connect()
    try:
        rows: list[Any] = await connection.fetch(statement, *args)
        return rows
    finally:
        await connection.close()


async def caught_up(primary: PostgresServer, standby: PostgresServer) -> None:
    """Wait until the standby has replayed all that was committed at the primary."""
    # Receives commit lazily: without a commit that waits for its write, the last of them may stand nowhere yet.
    await execute(primary.url(), "SELECT pg_logical_emit_message(true, 'queuebell', 'all before this is written')")
    ((place,),) = await execute(primary.url(), "SELECT pg_current_wal_lsn()::text")
    url = standby.url(target_session_attrs="any")

    async def replayed() -> bool:
        ((done,),) = await execute(url, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", place)
        return bool(done)

    await until(replayed, "the standby has caught up")


async def take_no_writes(server: PostgresServer) -> None:
    """Make a primary read-only as an operator does, for connections that stand as well."""
    url = server.url(target_session_attrs="any")
    await execute(url, "ALTER SYSTEM SET default_transaction_read_only = on")
    await execute(url, "SELECT pg_reload_conf()")

    async def known() -> bool:
        return (await execute(url, "SHOW default_transaction_read_only"))[0][0] == "on"

    # The first process of the server tells the others before it starts one that knows.
    await until(known, "the server takes no writes")


async def init_as(url: str, version: int) -> None:
    """Make the tables as the version of Queuebell that knew this schema did."""
    access = PostgresAccess(url)
    connection = await access.connect()
    try:
        async with connection.transaction():
            await connection.execute(f"CREATE SCHEMA {access.search_path}")
            await connection.execute("CREATE TABLE queuebell_schema (version integer NOT NULL)")
            await connection.execute("INSERT INTO queuebell_schema VALUES ($1)", version)
            for script in MIGRATIONS[:version]:
                await connection.execute(script)
    finally:
        await connection.close()


def let_pass_in(url: str) -> Callable[[float], Awaitable[None]]:
    """Return what makes time pass for a store whose clock is the server's: all its times move into the past."""

    async def let_pass(seconds: float) -> None:
        await execute(
            url,
            "UPDATE queuebell_messages SET visible_at = visible_at - $1::float * interval '1 second',"
            " expires_at = expires_at - $1 * interval '1 second'",
            seconds,
        )

    return let_pass
