"""A real PgBouncer before a PostgreSQL server: pool mode transaction, and what it has by default unless said."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from tests.support.postgres import PostgresServer
from tests.support.processes import PATIENCE_S, free_port


class Pgbouncer:
    """Where one listens, and the server behind it."""

    def __init__(self, server: PostgresServer, port: int) -> None:
        self._server, self.port = server, port

    def url(self, database: str = "postgres", *, direct: bool = False, **options: str) -> str:
        """The address of a database of the server by way of this pooler; ``direct`` names the server besides."""
        if direct:
            options["direct"] = f"127.0.0.1:{self._server.port}"
        return self._server.url(database, **options).replace(f":{self._server.port}/", f":{self.port}/", 1)


@contextlib.contextmanager
def pooling(server: PostgresServer, port: int | None = None, **settings: str) -> Iterator[Pgbouncer]:
    """Run one, on a ``port`` that another had if need be, and leave nothing behind."""
    program = shutil.which("pgbouncer")
    assert program, "no pgbouncer: see .ci/packages"
    # It refuses to be root; and where pytest keeps its folders nobody but this user may enter.
    folder = Path(tempfile.mkdtemp(prefix="queuebell-pgbouncer-", dir="/tmp"))
    folder.chmod(0o755)
    port = port or free_port()
    (folder / "users").write_text('"postgres" ""\n')
    given = {
        "listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": "", "auth_type": "trust",
        "auth_file": folder / "users", "pool_mode": "transaction", **settings,
    }  # fmt: skip
    lines = ["[databases]", f"* = host=127.0.0.1 port={server.port}", "[pgbouncer]"]
    (folder / "ini").write_text("\n".join([*lines, *(f"{key} = {value}" for key, value in given.items())]) + "\n")
    command = [program, *(["-u", "nobody"] if os.geteuid() == 0 else []), str(folder / "ini")]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        said: list[str] = []
        up = threading.Event()

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                if "process up" in line:
                    up.set()
            up.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            assert up.wait(PATIENCE_S) and process.poll() is None, said
            yield Pgbouncer(server, port)
        finally:
            process.kill()
            reader.join()
            shutil.rmtree(folder)


async def connect(pooler: Pgbouncer) -> asyncpg.Connection:
    """Return a connection as an application has it that knows of its pooler."""
    return await asyncpg.connect(pooler.url(), statement_cache_size=0)
