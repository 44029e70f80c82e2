"""The loop of ``serve`` reads from few at a time, from all in turn, and knows how far behind it may be."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

from queuebell.command.bounded_selector import BoundedSelector, loop_of


@contextlib.contextmanager
def ready_sockets(turns: BoundedSelector, count: int) -> Iterator[list[socket.socket]]:
    """Register sockets that have a byte to read each, the first as number 0."""
    with contextlib.ExitStack() as stack:
        stack.callback(turns.close)
        read = []
        for number in range(count):
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            theirs.send(b"x")
            turns.register(ours.fileno(), selectors.EVENT_READ, number)
            read.append(ours)
        yield read


def told(turns: BoundedSelector) -> list[int]:
    """Return the numbers of those that it tells of now."""
    return [key.data for key, events in turns.select(0) if events == selectors.EVENT_READ]


def test_all_are_told_of_in_turn() -> None:
    """Two at a time, and those that nobody reads come again after the others and not before."""
    turns = BoundedSelector(2)
    with ready_sockets(turns, 5) as sockets:
        seen = told(turns) + told(turns) + told(turns)
        assert len(seen) == 6
        assert set(seen[:5]) == set(range(5))
        assert seen[5] == seen[0]
        for each in sockets[:4]:
            each.recv(1)
        assert told(turns) == [4]
        turns.unregister(sockets[4].fileno())
        assert told(turns) == []


def test_since_when_it_reads_is_known() -> None:
    """From the last time that all had been told of; and from now where it had to wait for the first."""
    now = 100.0

    def clock() -> float:
        return now

    turns = BoundedSelector(2, clock)
    with ready_sockets(turns, 5) as sockets:
        # Ready since it was made; of five, two were read in each of these turns.
        for later in (101.0, 102.0):
            now = later
            assert len(told(turns)) == 2
            assert turns.since() == 100.0
        for each in sockets[:4]:
            each.recv(1)
        now = 103.0
        assert told(turns) == [4]
        assert turns.since() == 100.0
        # All had been told of at 103; what is told now came afterwards.
        now = 104.0
        assert told(turns) == [4]
        assert turns.since() == 103.0


def test_what_it_waited_for_came_just_now() -> None:
    """A loop that slept for an hour is not an hour behind."""
    times = iter((0.0, 10.0, 3610.0))
    turns = BoundedSelector(2, lambda: next(times))
    with ready_sockets(turns, 1):
        assert len(turns.select(None)) == 1
        assert turns.since() == 3610.0


def test_it_carries_a_loop() -> None:
    """With fewer files a turn than there are clients, all of them are answered, and timers come in time."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()
        await writer.wait_closed()

    async def ask(port: int, number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"%d\n" % number)
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return answer

    async def main() -> list[bytes]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server, asyncio.timeout(300):
            port = server.sockets[0].getsockname()[1]
            await asyncio.sleep(0.001)
            return await asyncio.gather(*(ask(port, number) for number in range(20)))

    with asyncio.Runner(loop_factory=loop_of(BoundedSelector(3))) as runner:
        assert runner.run(main()) == [b"%d\n" % number for number in range(20)]


def test_without_epoll_it_serves_all_the_same(tmp_path: pathlib.Path) -> None:
    """On macOS there is none; the standard loop takes its place."""
    program = (
        "import select, selectors, sys\n"
        "del select.epoll, selectors.EpollSelector\n"
        "selectors.DefaultSelector = selectors.PollSelector\n"
        "from queuebell.command.main import main\n"
        f"sys.exit(main(['serve', '--listen', '127.0.0.1:0', '--data', {str(tmp_path)!r}]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("queuebell ready on ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
