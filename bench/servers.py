"""The servers of others, each from its installed program, on a free port, with the durability it has by default."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bench.stage import Stage, free_port, nats_program

WITHIN = 500
"""Looks, 20 ms apart, until a server must have come up."""


async def redis(stage: Stage, name: str) -> str:
    """Start a Redis server without a configuration file, and return its URL."""
    port = free_port()
    command = [_redis(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(stage.data(name))]
    child = await stage.program("redis-server", command)
    await _listens(port, child.words)
    return f"redis://127.0.0.1:{port}/0"


async def jetstream(stage: Stage, name: str, *, always: bool = False) -> tuple[str, str]:
    """Start a NATS server with JetStream, and return its URL and that of its monitoring.

    It syncs its files every two minutes, or (``always``) before each acknowledgement.
    """
    program = _nats()
    folder = stage.data(name)
    settings = folder / "nats.conf"
    sync = "sync_interval: always" if always else ""
    settings.write_text(f'jetstream {{ store_dir: "{folder}"\n{sync} }}\n')
    options = ["-a", "127.0.0.1", "-p", "-1", "-m", "-1", "-c", str(settings), "--ports_file_dir", str(folder)]
    child = await stage.program("nats-server", [program, *options])
    file = folder / f"nats-server_{child.pid}.ports"
    for _ in range(WITHIN):
        with contextlib.suppress(OSError, ValueError, LookupError):
            ports = json.loads(file.read_text())
            return str(ports["nats"][0]), str(ports["monitoring"][0])
        await asyncio.sleep(0.02)
    raise RuntimeError(f"nats-server did not come up\n{child.words()}")


async def postgres(stage: Stage, name: str) -> str:
    """Make a cluster with initdb's own settings and the extension that counts statements; return its server's URL."""
    initdb = _initdb()
    folder = stage.data(name)
    user = _other_user() if os.geteuid() == 0 else None
    if user is not None:
        # Its server refuses to be root.
        stage.folder.chmod(0o711)
        shutil.chown(folder, user)
    data, port = folder / "data", free_port()
    made = [str(initdb), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
    await asyncio.to_thread(subprocess.run, made, user=user, cwd=folder, check=True, capture_output=True)
    settings = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "shared_preload_libraries": "pg_stat_statements",
    }
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    server = [str(initdb.with_name("postgres")), "-D", str(data), *options]
    child = await stage.program("postgres", server, user=user)
    await _listens(port, child.words)
    return f"postgres://postgres@127.0.0.1:{port}"


async def database(server: str, name: str) -> str:
    """Make a database and return its URL."""
    import asyncpg  # type: ignore[import-untyped]

    connection: Any = None
    for _ in range(WITHIN):
        # It takes connections a moment before it answers them.
        with contextlib.suppress(OSError, asyncpg.CannotConnectNowError):
            connection = await asyncpg.connect(f"{server}/postgres")
            break
        await asyncio.sleep(0.02)
    await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return f"{server}/{name}"


def programs() -> list[str]:
    """Return the servers' programs; raises `RuntimeError` for one that is not installed."""
    return [_redis(), _nats(), str(_initdb().with_name("postgres"))]


def _redis() -> str:
    return _installed("redis-server", shutil.which("redis-server"))


def _nats() -> str:
    return _installed("nats-server", nats_program())


def _initdb() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return Path(_installed("initdb", str(found[-1]) if found else shutil.which("initdb")))


def _installed(name: str, program: str | None) -> str:
    if program is None:
        raise RuntimeError(f"needs the program {name}, which is not installed")
    return program


def _other_user() -> str:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RuntimeError("root needs the user postgres or nobody to run PostgreSQL as")


async def _listens(port: int, words: Any) -> None:
    for _ in range(WITHIN):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.02)
    raise RuntimeError(f"nothing listens on port {port}\n{words()}")
