"""What a worker reports to the scaler that started it (ready, busy, idle), and how it ends when that scaler is gone.

The end of the socket is the only sign of a killed scaler: a thread waits for it and ends the
process group that the scaler made, as the scaler would: by SIGTERM, and by SIGKILL after the grace. All listeners of
the process share the socket: it is ready once all of them are, and busy while any is.

``QUEUEBELL_STARTER`` names the worker's end as ``FD:INODE:GRACE``. The second number shows whether the descriptor is
still that socket: a program between the two may have closed it and opened something else in its place. The third is the
grace in seconds.
``QUEUEBELL_STARTED_FOR`` is the queue: a worker that does not listen to it logs a warning.

A unit of systemd sets it to ``systemd``. Then the same words go to systemd, which the scaler asks: ready as ``READY=1``
of sd_notify(3), the others as the unit's status with the number of times that the worker was busy. Such a worker is
systemd's, and does not end with its scaler.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

log = logging.getLogger("queuebell.listener")

VARIABLE: Final = "QUEUEBELL_STARTER"
STARTED_FOR: Final = "QUEUEBELL_STARTED_FOR"
"""The queue whose work the scaler started it for."""
READY: Final = b"ready"
"""The listener has a session with its bridge, or polls for want of one."""
BUSY: Final = b"busy"
"""It holds messages."""
IDLE: Final = b"idle"
STARTER_GONE: Final = getattr(signal, "SIGHUP", signal.SIGTERM)
"""What the kernel sends a worker when its scaler is gone. It ends one that has no listener yet."""
SYSTEMD: Final = "systemd"
NOTIFY: Final = "NOTIFY_SOCKET"
NOTIFY_S: Final = 1.0
"""How long to wait for systemd at most; there is no other way to report to it."""
STOP_PART: Final = 0.8
"""How much of the scaler's grace a worker waits for its handlers; in the rest it ends them and gives messages back."""
CHECK_S: Final = 1.0
"""How often one that is busy sees whether it still is: a scaler wants to know of seconds, not of every message."""


def ticket(fd: int, grace: float) -> str:
    """Return the variable's value for an open socket and the seconds between SIGTERM and SIGKILL."""
    return f"{fd}:{os.fstat(fd).st_ino}:{grace:g}"


def inherited(environment: Mapping[str, str]) -> tuple[int, float] | None:
    """Return the descriptor of the socket to the scaler, and the grace; None where it is not that socket any more."""
    try:
        fd, inode, grace = environment.get(VARIABLE, "").split(":")
        is_it = os.fstat(int(fd))
        if stat.S_ISSOCK(is_it.st_mode) and is_it.st_ino == int(inode):
            return int(fd), max(0.0, float(grace))
    except (ValueError, OSError, OverflowError):
        pass
    return None


def notified(environment: Mapping[str, str]) -> str | None:
    """Return the address of systemd's socket where the unit asks for reports; None otherwise."""
    address = environment.get(NOTIFY, "")
    if environment.get(VARIABLE) != SYSTEMD or address[:1] not in ("/", "@"):
        return None
    return f"\0{address[1:]}" if address.startswith("@") else address


class ScalerLink:
    """The process's end of the socket; nothing is said without one. One for all listeners of a process."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._pid = 0
        self._lock = threading.Lock()
        self._members: list[WorkerStatus] = []
        self._reported: list[bytes] = []
        """What was reported: `READY`, and the newest of the other two."""
        self.grace = math.inf
        """Seconds from the scaler's SIGTERM to its SIGKILL."""
        self._times_busy = 0
        """How often it has been busy."""
        self._systemd = False

    def join(self, member: WorkerStatus) -> bool:
        """Add one of the process's listeners; return False where there is no scaler."""
        with self._lock:
            if self._socket is None and not self._open():
                return False
            if self._pid != os.getpid():  # one forked off a worker is not the process that was started
                return False
            self._members.append(member)
            return True

    def _open(self) -> bool:
        address, given = notified(os.environ), inherited(os.environ)
        if address is not None:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                link.settimeout(NOTIFY_S)
                link.connect(address)
            except OSError as error:
                log.warning("this worker cannot report to systemd: %s", error)
                link.close()
                return False
            self._socket, self._pid, self._systemd = link, os.getpid(), True
        elif given is not None:
            fd, self.grace = given
            os.set_inheritable(fd, False)  # what this worker starts is its own affair
            self._socket, self._pid = socket.socket(fileno=fd), os.getpid()
            ends = [self._socket, self.grace]
            threading.Thread(target=_watch, args=ends, name="queuebell-starter", daemon=True).start()
            _ignore_end_signal()
        return self._socket is not None

    def leave(self, member: WorkerStatus) -> None:
        """Remove a listener."""
        with self._lock:
            if member in self._members:
                self._members.remove(member)

    def report(self) -> None:
        """Report what has changed."""
        with self._lock:
            if not self._members or not all(each.works for each in self._members):
                return
            if not self._reported:
                self._check_queue(os.environ.get(STARTED_FOR))
                self._report(READY)
            state = BUSY if any(each.busy for each in self._members) else IDLE
            if self._reported[-1] != state:
                self._report(state)

    def _check_queue(self, wanted: str | None) -> None:
        taken = {queue for each in self._members for queue in each.queues()}
        if wanted and taken and wanted not in taken:
            # To its scaler it looks like an idle worker, and the work waits.
            listened = ", ".join(sorted(taken)[:10])
            log.warning(
                "this worker was started for %s but listens to %s: it receives nothing from the first queue",
                wanted,
                listened,
            )

    def _report(self, word: bytes) -> None:
        self._reported = [READY, word]
        self._times_busy += word == BUSY
        self.send(word)

    def send(self, word: bytes) -> None:
        """Send a word."""
        assert self._socket is not None
        text = word + b"\n"
        if self._systemd:
            text = b"READY=1\n" if word == READY else b"STATUS=%b %d\n" % (word, self._times_busy)
        try:
            # Never waits for a scaler that does not read.
            self._socket.send(text, 0 if self._systemd else socket.MSG_DONTWAIT)
        except OSError as error:
            log.debug("the scaler did not get a report: %s", error)


def _watch(link: socket.socket, grace: float) -> None:
    """Wait for the scaler's end, and end what it started: this process, and what shares its group."""
    try:
        link.setblocking(True)
        while link.recv(64):
            pass
    except OSError:
        pass
    log.warning("the scaler that started this worker is gone: the worker stops, within %g s", grace)
    os.killpg(0, signal.SIGTERM)
    time.sleep(grace)
    log.warning("this worker has not stopped within %g s of SIGTERM: it is killed", grace)
    os.killpg(0, signal.SIGKILL)


def _ignore_end_signal() -> None:
    """Ignore the kernel's signal: the thread that reads the socket stops the process in order."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(STARTER_GONE) is signal.SIG_DFL:
        # Not ignored, which the commands that this worker runs would inherit.
        signal.signal(STARTER_GONE, lambda number, frame: None)


_link: Final = ScalerLink()


class WorkerStatus:
    """One listener's part of it; does nothing where no scaler started the process.

    ``holds`` counts its messages, ``queues`` names those that it listens to.
    """

    def __init__(
        self, holds: Callable[[], int], link: ScalerLink = _link, queues: Callable[[], Collection[str]] = tuple
    ) -> None:
        self.works = self.busy = False
        self.queues = queues
        self._holds = holds
        self._timer: asyncio.TimerHandle | None = None
        self._link = link
        self.linked = link.join(self)
        """Whether a scaler started the process."""

    def within(self, grace: float) -> float:
        """Return for how long a stop may wait for handlers: a worker that is killed ends no command that it runs."""
        most = STOP_PART * self._link.grace if self.linked else math.inf
        if most < grace:
            log.warning(
                "a grace of %g s is cut to %g s: its scaler kills this worker %g s after SIGTERM",
                grace,
                most,
                self._link.grace,
            )
        return min(grace, most)

    def ready(self) -> None:
        """Note that the listener has a session, or polls for want of a bridge."""
        self.works = True
        self._link.report()

    def took(self) -> None:
        """Note that it has taken messages."""
        if self.linked and not self.busy:
            self.busy = True
            self._link.report()
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self.busy = self._holds() > 0
        self._link.report()
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check) if self.busy else None

    def close(self) -> None:
        """Leave, and report nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._link.leave(self)
