"""A bridge that has no file left for one more connection goes on serving those that it has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import socket

from tests.chaos.site import INSIDE
from tests.support.processes import Processes, until
from tests.support.web import Client, request


def busy_s(pid: int) -> float:
    """Return the seconds of a core that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_out_of_files_it_waits_and_serves(processes: Processes) -> None:
    """`/livez` answers on a connection that is there, the loop rests, the log says it once, and it ends by itself."""
    bridge = await processes.serve(launcher=(*INSIDE, "files", "64"), connections="1000")
    port = int(bridge.url.rpartition(":")[2])
    kept = Client(*await asyncio.open_connection("127.0.0.1", port))

    async def metric(name: str) -> float:
        await kept.send(request("GET", "/metrics"))
        text = (await kept.reply()).body.decode()
        (line,) = (line for line in text.splitlines() if line.startswith(name + " "))
        return float(line.split()[1])

    async def seen() -> bool:
        return await metric("queuebell_accept_pauses") > 0

    with contextlib.ExitStack() as stack:
        before = busy_s(bridge.process.pid)
        for _ in range(200):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(("127.0.0.1", port))
        await until(seen, "it is counted")
        for _ in range(20):
            await kept.send(request("GET", "/livez"))
            assert (await kept.reply()).status == 200
        pauses = await metric("queuebell_accept_pauses")

        async def again() -> bool:
            return await metric("queuebell_accept_pauses") >= pauses + 2

        # Two more of them: nothing else is done meanwhile.
        await until(again, "it tried again")
        assert busy_s(bridge.process.pid) - before < 2.0

    async def served() -> bool:
        return (await bridge.ask("/livez"))[0] == 200

    await until(served, "new connections are taken")
    await kept.close()
    assert await bridge.stop() == 0
    assert "Traceback" not in bridge.errors
    assert bridge.errors.count("no new connection can be accepted") <= 2, bridge.errors
