"""Calls and sessions through the reverse proxies of docs/how-to/secure.md, as set up there, with TLS and keys."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import re
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.queues.base import Depth
from tests.support.access import written
from tests.support.certificates import write_self_signed
from tests.support.processes import PATIENCE_S, ROOT, environment, free_port, until
from tests.support.web import serving

pytestmark = pytest.mark.system
QUEUE = "billing/orders"
ALL = {"put": ["*"], "take": ["*"], "look": ["*"]}


def set_up(proxy: str, folder: pathlib.Path, bridge: int) -> tuple[list[str], int]:
    """Write what the page shows, with this test's ports, names and certificate; return the command and its port."""
    text = (ROOT / "docs" / "how-to" / "secure.md").read_text()
    found = re.search(rf"^```{proxy}\n(.*?)^```", text, re.M | re.S)
    assert found, f"docs/how-to/secure.md shows no {proxy}"
    cert, key = write_self_signed(folder)
    (folder / "both.pem").write_bytes(cert.read_bytes() + key.read_bytes())
    port = free_port()
    config = found[1].replace("127.0.0.1:8470", f"127.0.0.1:{bridge}").replace("bridge.internal", "127.0.0.1")
    config = config.replace("/etc/queuebell/both.pem", str(folder / "both.pem"))
    config = config.replace("/etc/queuebell/tls.crt", str(cert)).replace("/etc/queuebell/tls.key", str(key))
    file = folder / "config"
    if proxy == "nginx":
        places = "".join(
            f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config = config.replace("listen 443", f"listen 127.0.0.1:{port}")
        head = f"pid {folder}/pid; daemon off; error_log stderr;\nevents {{}}\nhttp {{ access_log off;"
        config = f"{head} {places}\n{config}}}\n"
        command = ["nginx", "-p", str(folder), "-c", str(file)]
    elif proxy == "caddy":
        config = config.replace("127.0.0.1 {", f"https://127.0.0.1:{port} {{\n    tls {cert} {key}", 1)
        config = f"{{\n    admin off\n    auto_https off\n    storage file_system {folder}\n}}\n{config}"
        command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(file)]
    else:
        config = config.replace("bind :443", f"bind 127.0.0.1:{port}")
        command = ["haproxy", "-db", "-f", str(file)]
    file.write_text(config)
    return command, port


@contextlib.asynccontextmanager
async def running(command: list[str], port: int, folder: pathlib.Path) -> AsyncIterator[None]:
    """Run a proxy until the block ends."""
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, env={**os.environ, "HOME": str(folder)}, start_new_session=True
        )

    async def answers() -> bool:
        assert process.returncode is None, (folder / "log").read_text()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await until(answers, f"{command[0]} answers")
        yield
    finally:
        # nginx's and HAProxy's workers are processes of their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


PROGRAM = f"""
import asyncio, sys
from queuebell import Listener, open_store

async def main(url):
    handled, done = set(), asyncio.Event()

    async def handle(message):
        handled.add(len(message.body))
        if len(handled) == 4:
            done.set()

    listener = Listener(url, "{QUEUE}", handle)
    running = asyncio.create_task(listener.run())
    store = open_store(url)
    for sizes in ([5], [60_000, 40_000], [7]):
        await store.put("{QUEUE}", [b"x" * size for size in sizes])
        print("put", "aiohttp" in sys.modules, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    await done.wait()
    await listener.stop()
    await running
    await store.close()
    print(sorted(handled), flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("proxy", ["nginx", "haproxy", "caddy"])
async def test_a_wire_through_a_proxy(proxy: str, tmp_path: pathlib.Path) -> None:
    """Calls and a session share a wire, large calls go over HTTP, and both return when the proxy does."""
    secrets = written(tmp_path / "access.json", {"worker": ALL})
    async with (
        AccessWatch(tmp_path / "access.json") as watch,
        serving(access=watch, allowed_hosts=("127.0.0.1",)) as served,
        asyncio.timeout(PATIENCE_S),
    ):
        assert served.server.wires is not None
        open_here = served.server.wires.open
        command, port = set_up(proxy, tmp_path, served.server.port)
        client: asyncio.subprocess.Process | None = None

        async def all_done() -> bool:
            return await served.bridge.store.depth(QUEUE) == Depth(0, 0)

        try:
            async with running(command, port, tmp_path):
                # Not before: a proxy may take longer to start than the client waits for it.
                client = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", PROGRAM, f"https://127.0.0.1:{port}"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env=environment(SSL_CERT_FILE=str(tmp_path / "cert.pem"), QUEUEBELL_API_KEY=secrets["worker"]),
                )
                assert client.stdin is not None and client.stdout is not None
                assert await client.stdout.readline() == b"put False\n"
                await until(lambda: served.bridge.listeners() and len(open_here) == 1, "one wire for calls and session")
                client.stdin.write(b"\n")
                assert await client.stdout.readline() == b"put True\n"
                await until(all_done, "all messages so far are handled and deleted")
            await until(lambda: not open_here, "the wire ends with the proxy")
            async with running(command, port, tmp_path):
                client.stdin.write(b"\n\n")
                assert await client.stdout.readline() == b"put True\n"
                assert await client.stdout.readline() == b"[5, 7, 40000, 60000]\n"
            assert await client.wait() == 0
        finally:
            if client is not None:
                if client.returncode is None:
                    client.kill()
                await client.wait()
