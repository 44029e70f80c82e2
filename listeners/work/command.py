"""A handler that runs a command for each message: ``--exec``, for any language."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec

from queuebell.bridge.observe import tracing
from queuebell.listeners.handler import Bury, Message, Replay, Retry

DELETE = 0
RETRY = 75
BURY = 100
REPLAY = 101


class CommandFailed(Exception):
    """The command ended with an exit code that stands for a failed attempt, or by a signal."""


class Command:
    """Runs ``/bin/sh -c`` with the body on standard input, in its own process group.

    Exit code 0 is done; 75 raises `Retry`, 100 `Bury`, 101 `Replay`, any other `CommandFailed`. When it is cancelled
    the whole group is killed, so that no grandchild goes on with a message that another worker will get.
    """

    def __init__(self, line: str) -> None:
        self._line = line
        self.name = f"exec:{line.split(maxsplit=1)[0]}"
        """Its program, for metrics and status; arguments may hold secrets."""

    async def __call__(self, message: Message) -> None:
        """Handle one message."""
        # Its own pipe: asyncio's would be awaited to its end, and processes that the command leaves may hold it open.
        stdin, body = os.pipe()
        try:
            feeding, _ = await asyncio.get_running_loop().connect_write_pipe(
                asyncio.BaseProtocol, os.fdopen(body, "wb", buffering=0)
            )
        except BaseException:
            os.close(stdin)
            raise
        try:
            process = await self._start(message, stdin)
            # A command need not read its input.
            feeding.write(message.body)
            feeding.write_eof()
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    _kill_group(process.pid)
                    await process.wait()
        finally:
            # Closed twice, asyncio's transport would log an error: it is closed already if its reader has gone, or if
            # all is written.
            if feeding.get_write_buffer_size() or not feeding.is_closing():
                feeding.abort()
        code = process.returncode
        if code == DELETE:
            return
        if code == RETRY:
            raise Retry
        if code == BURY:
            raise Bury(f"the command ended with exit code {BURY}")
        if code == REPLAY:
            raise Replay
        if code is not None and code < 0:
            raise CommandFailed(f"the command was ended by {_signal_name(-code)}")
        raise CommandFailed(f"the command ended with exit code {code}")

    async def _start(self, message: Message, stdin: int) -> asyncio.subprocess.Process:
        burial = {} if message.burial is None else {"QUEUEBELL_BURIAL": msgspec.json.encode(message.burial).decode()}
        # OpenTelemetry's names for a context in a process's environment: upper case.
        context = {} if tracing.on is None else {name.upper(): text for name, text in tracing.on.carried().items()}
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                self._line,
                stdin=stdin,
                start_new_session=True,
                env={
                    **os.environ,
                    "QUEUEBELL_ID": message.id,
                    "QUEUEBELL_QUEUE": message.queue,
                    "QUEUEBELL_ATTEMPT": str(message.attempt),
                    **burial,
                    **context,
                },
            ),
            name=f"queuebell-command:{message.id}",
        )
        # Not here: cancelled twice, this would close it before the command has it.
        starting.add_done_callback(lambda _: os.close(stdin))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # asyncio would kill the shell alone if it were cancelled between its fork and its return; what the shell
            # has started by then would go on.
            starting.add_done_callback(_kill_started)
            await asyncio.wait({starting})
            if not starting.cancelled() and starting.exception() is None:
                await starting.result().wait()  # its end is seen here, or by nobody if the loop ends now
            raise


def _kill_started(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        _kill_group(starting.result().pid)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself just now


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
