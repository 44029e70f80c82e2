"""Start workers when work comes, and end them when there is none: from zero processes and back.

After -- comes the command of one worker, a program that runs a Listener of this queue in the foreground; or, with
--actuator exec, a command in which {} is replaced by the wanted number of workers. A file has one table [[scale]] for
each queue, with the options as keys. The output of workers goes to standard error, each line with its queue and its
worker. SIGTERM and SIGINT end all workers in order, a second one at once; units of systemd keep running. SIGHUP reads
the file again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import signal
from collections.abc import Callable, Mapping
from typing import IO, Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta

from queuebell.bridge.brokers.address import with_prefix
from queuebell.bridge.contract.address import is_http
from queuebell.bridge.contract.errors import BadInput, BadQueueReference, ConfigurationError, QueuebellError
from queuebell.bridge.contract.names import DEFAULT_PREFIX, parse_reference
from queuebell.bridge.contract.settings import SCALE_TABLE, resolve
from queuebell.listeners.scaling.actuators.base import Actuator
from queuebell.listeners.scaling.actuators.output import OUTPUT
from queuebell.listeners.scaling.processes import Limits
from queuebell.listeners.scaling.scaler import Scaler
from queuebell.listeners.session.opening import PULL_ONLY
from queuebell.listeners.work.lifecycle import StopSignals
from queuebell.settings import read_tables

log = logging.getLogger("queuebell.scaler")

Seconds = Annotated[float, Meta(ge=0, le=604_800)]
Count = Annotated[int, Meta(ge=1)]
_LIMITS: Final = Limits()
_ENVIRONMENT: Final = ("QUEUEBELL_BRIDGE", "QUEUEBELL_PREFIX", "QUEUEBELL_LOG_FORMAT", "QUEUEBELL_LOG_LEVEL")
"""The variables that count here; workers inherit all, and the others may be for them."""
_SHARED: Final = frozenset({"bridge", "prefix", "log_format", "log_level"})
"""Keys of the file's top level that count for every table."""
_TUNED: Final = ("min", "max", "idle", "per_process", "start_rate", "start_timeout")
"""What can change while workers run."""
_TARGETS: Final[Mapping[str, str]] = {
    "process": "command",
    "exec": "command",
    "systemd": "unit",
}
"""The key that each actuator needs: what it scales."""
_BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "process": ("grace",),
    "exec": (),
    "systemd": ("user",),
}
"""Further keys of one actuator alone."""
_WANTING: Final[Mapping[str, str]] = {
    "process": "name STORE, ACCOUNT/QUEUE and, after --, the command of one worker",
    "exec": "name, after --, the command that sets the number of workers, as -- scale-to {}",
    "systemd": "name the template of the workers' units, as --unit queuebell-worker@",
}
_REMOVED: Final = (
    "kubernetes was removed, and no worker was started or ended: use KEDA, or the actuator exec with kubectl scale "
    "(docs/how-to/kubernetes.md)"
)


class ScaleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a file's table ``[[scale]]``; times in seconds."""

    store: str = ""
    queue: str = ""
    command: tuple[str, ...] = ()
    actuator: Literal["process", "exec", "systemd"] = "process"
    unit: str | None = None
    user: bool = False
    bridge: str | None = None
    prefix: str = DEFAULT_PREFIX
    pull_only: bool = False
    name: str | None = None
    min: Annotated[int, Meta(ge=0)] = _LIMITS.minimum
    max: Count = _LIMITS.maximum
    idle: Seconds = _LIMITS.idle_s
    per_process: Count = _LIMITS.per_process
    start_rate: Count = _LIMITS.start_rate
    start_timeout: Annotated[float, Meta(gt=0, le=604_800)] = _LIMITS.start_timeout_s
    grace: Seconds | None = None
    trust_count: bool = False
    log_format: Literal["plain", "json"] = "plain"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def limits(self) -> Limits:
        """Return the limits among the settings; raises `BadInput`."""
        return Limits(
            minimum=self.min,
            maximum=self.max,
            per_process=self.per_process,
            start_rate=self.start_rate,
            idle_s=self.idle,
            start_timeout_s=self.start_timeout,
        )

    def apart(self) -> tuple[Any, ...]:
        """Return the settings whose change needs a new scaler."""
        fixed = ("start_timeout",) if self.actuator != "process" else ()  # for these it also bounds each call
        fields = (field for field in self.__struct_fields__ if field not in _TUNED or field in fixed)
        return tuple(getattr(self, field) for field in fields)

    def check(self, source: str) -> None:
        """Raise `ConfigurationError`, after ``source``, if the actuator lacks its key, or has another's."""
        where = f"{source}: " if source else ""
        target = _TARGETS[self.actuator]
        own = {target, *_BESIDE[self.actuator]}
        for actuator, needed in _TARGETS.items():
            for key in (needed, *_BESIDE[actuator]):
                if key not in own and getattr(self, key) not in (None, False, ()):
                    raise ConfigurationError(
                        f"{where}{key} needs --actuator {actuator}, and this one is {self.actuator}"
                    )
        if not getattr(self, target):
            raise ConfigurationError(f"{where}{target} is missing: {_WANTING[self.actuator]}")

    def driver(self) -> tuple[str, ...] | Actuator:
        """Return the command of one worker, or the actuator that starts them. Raises `ConfigurationError`."""
        if self.actuator == "exec":
            from queuebell.listeners.scaling.actuators.command import CommandActuator

            return CommandActuator(self.command, within_s=self.start_timeout)
        if self.actuator == "systemd":
            from queuebell.listeners.scaling.actuators.systemd import SystemdActuator

            return SystemdActuator(self.unit or "", user=self.user, within_s=self.start_timeout)
        return self.command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``scale``."""
    parser.add_argument("store", metavar="STORE", nargs="?", help="where the messages wait")
    parser.add_argument("queue", metavar="ACCOUNT/QUEUE", nargs="?")
    parser.add_argument("command", metavar="COMMAND", nargs="*", help="after --: one worker, or the command for exec")
    parser.add_argument("--config", metavar="FILE", help="TOML file with tables [[scale]], instead of the operands")
    parser.add_argument(
        "--actuator", metavar="KIND", type=_kept, help="what starts workers: process (default), exec or systemd"
    )
    parser.add_argument("--unit", metavar="NAME@", help="systemd: the template of the workers' units")
    parser.add_argument("--user", action="store_const", const=True, help="systemd: units of this user's own systemd")
    parser.add_argument(
        "--bridge", metavar="URL", help="the bridge that sends the wakes (default: STORE, if that is a bridge)"
    )
    parser.add_argument("--pull-only", action="store_const", const=True, help="count with back-off, without a bridge")
    parser.add_argument("--name", help="name shown in status (default: host and process)")
    parser.add_argument("--min", metavar="N", help=f"workers that always run (default {_LIMITS.minimum})")
    parser.add_argument("--max", metavar="N", help=f"workers that run at most (default {_LIMITS.maximum})")
    parser.add_argument(
        "--idle", metavar="S", help=f"seconds until an idle worker is ended (default {_LIMITS.idle_s:g})"
    )
    parser.add_argument("--per-process", metavar="N", help=f"messages per worker (default {_LIMITS.per_process})")
    parser.add_argument("--start-rate", metavar="N", help=f"most starts per second (default {_LIMITS.start_rate})")
    parser.add_argument(
        "--start-timeout",
        metavar="S",
        help=f"seconds until a worker must be ready (default {_LIMITS.start_timeout_s:g})",
    )
    parser.add_argument("--grace", metavar="S", help="process: seconds between SIGTERM and SIGKILL (default 30)")
    parser.add_argument("--trust-count", action="store_const", const=True, help="SQS: trust a count of 0")
    parser.add_argument("--log-format", metavar="FORM", help="plain (default) or json")
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info (default), warning or error")


def _kept(actuator: str) -> str:
    """Refuse the removed actuator before argparse refuses its options, which would hide the reason."""
    if actuator == "kubernetes":
        raise argparse.ArgumentTypeError(_REMOVED)
    return actuator


def run(args: argparse.Namespace) -> int:
    """Scale until a signal."""
    options = {name: value for name, value in vars(args).items() if name != "config" and value}

    def read() -> list[ScaleSettings]:
        return load(args.config, environment=os.environ, options=options)

    wanted = read()
    from queuebell.bridge.observe.logs import configure

    # Written by a thread: a slow reader of standard error must not stop the loop that starts workers.
    configure(wanted[0].log_format, wanted[0].log_level, cast("IO[str]", OUTPUT))
    made = [_made(settings) for settings in wanted]
    asyncio.run(_Fleet(list(zip(wanted, made, strict=True)), read).run())
    return 0


def load(file: str | None, *, environment: Mapping[str, str], options: Mapping[str, Any]) -> list[ScaleSettings]:
    """Return the settings of each queue, of the operands or of a file. Raises `ConfigurationError`."""
    told = {name: text for name, text in environment.items() if name in _ENVIRONMENT}
    tables: list[dict[str, Any]] = [{}]
    if file is not None:
        if options.get("store"):
            raise ConfigurationError("config: the file names stores, queues and commands; leave them out of the line")
        whole = read_tables(file)
        given = whole.get(SCALE_TABLE, [])
        if not isinstance(given, list) or not given or not all(isinstance(table, dict) for table in given):
            raise ConfigurationError(f"{file}: has no table [[{SCALE_TABLE}]]; there is one for each queue")
        shared = {key: value for key, value in whole.items() if key in _SHARED}
        tables = [shared | table for table in given]
    settings = []
    for number, table in enumerate(tables, 1):
        source = f"{file}: [[{SCALE_TABLE}]] {number}" if file else "configuration"
        if table.get("actuator") == "kubernetes":
            raise ConfigurationError(f"{source}: actuator: {_REMOVED}")
        command = table.get("command")
        if isinstance(command, str):
            try:
                table = {**table, "command": shlex.split(command)}
            except ValueError as error:
                raise ConfigurationError(f"{source}: command: cannot be split into words: {error}") from None
        each = resolve(ScaleSettings, table=table, source=source, environment=told, options=options)
        for key in ("store", "queue"):
            if not getattr(each, key):
                where = source if file else _WANTING["process"]
                raise ConfigurationError(f"{where}: {key} is missing")
        each.check(source if file else "")
        if file:
            try:
                parse_reference(each.queue)
                each.limits()
            except BadInput as error:
                key = "queue: " if isinstance(error, BadQueueReference) else ""
                raise ConfigurationError(f"{source}: {key}{error}") from None
        settings.append(each)
    queues = [each.queue for each in settings]
    if len(set(queues)) < len(queues):
        raise ConfigurationError(f"{file}: a queue is named twice")
    return settings


def _made(settings: ScaleSettings) -> Scaler:
    bridge: Any = PULL_ONLY if settings.pull_only else settings.bridge
    if isinstance(bridge, str):
        bridge = with_prefix(bridge, settings.prefix)
    elif bridge is None and not is_http(settings.store):
        raise ConfigurationError(
            "bridge: this store has none; name one with --bridge URL, or give --pull-only to count without one"
        )
    return Scaler(
        settings.store,
        settings.queue,
        settings.driver(),
        bridge=bridge,
        name=settings.name,
        grace=30.0 if settings.grace is None else settings.grace,
        trust_count=settings.trust_count,
        handle_signals=False,
        **{key: getattr(settings, key) for key in _TUNED},
    )


class _Fleet:
    """The scalers of one process, by queue."""

    def __init__(self, made: list[tuple[ScaleSettings, Scaler]], read: Callable[[], list[ScaleSettings]]) -> None:
        self._scalers = {settings.queue: (settings, scaler) for settings, scaler in made}
        self._read = read
        # Including scalers that still stop although the file no longer names them.
        self._tasks: dict[asyncio.Task[None], tuple[str, Scaler]] = {}
        self._changed = asyncio.Event()
        self._count = 0

    async def run(self) -> None:
        """Run until all have stopped; if one fails, stop the others and raise its error."""
        loop = asyncio.get_running_loop()
        for queue in self._scalers:
            self._begin(queue)
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, self._reread)
        failed: BaseException | None = None
        try:
            with StopSignals(self._signalled, take=True):
                while self._tasks:
                    self._changed.clear()
                    changing = asyncio.create_task(self._changed.wait(), name="scalers changed")
                    done, _ = await asyncio.wait({*self._tasks, changing}, return_when=asyncio.FIRST_COMPLETED)
                    changing.cancel()
                    for task in [task for task in self._tasks if task in done]:
                        del self._tasks[task]
                        if task.exception() is not None and failed is None:
                            failed = task.exception()
                            self._signalled(max(1, self._count))
        finally:
            if hasattr(signal, "SIGHUP"):
                loop.remove_signal_handler(signal.SIGHUP)
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
        if failed is not None:
            raise failed

    def _begin(self, queue: str) -> None:
        settings, scaler = self._scalers[queue]
        # One command serves both scalers: the next one waits for the 0 of the one before.
        before = [task for task, (of, _) in self._tasks.items() if of == queue and settings.actuator == "exec"]
        self._tasks[asyncio.create_task(_after(before, scaler), name=f"scaler[{queue}]")] = (queue, scaler)
        self._changed.set()

    def _signalled(self, count: int) -> None:
        self._count = count
        for _, scaler in self._tasks.values():
            scaler.signalled(count)

    def _reread(self) -> None:
        """Apply the file as it is now; if it cannot be read, change nothing."""
        if self._count:
            return
        try:
            wanted = {settings.queue: settings for settings in self._read()}
            made = {
                queue: _made(settings)
                for queue, settings in wanted.items()
                if queue not in self._scalers or self._scalers[queue][0].apart() != settings.apart()
            }
            limits = {queue: settings.limits() for queue, settings in wanted.items()}
        except (QueuebellError, TypeError) as error:
            log.error("SIGHUP: nothing was changed: %s", error)
            return
        for queue, (_, scaler) in list(self._scalers.items()):
            if queue in wanted and queue not in made:
                scaler.retune(limits[queue])
                self._scalers[queue] = wanted[queue], scaler
                continue
            scaler.retire("SIGHUP: another scaler takes over" if queue in wanted else "SIGHUP: no longer in the file")
            if queue not in wanted:
                del self._scalers[queue]
        for queue, scaler in made.items():
            self._scalers[queue] = wanted[queue], scaler
            self._begin(queue)
        count = len(self._scalers)
        log.info("SIGHUP: %d queue%s scaled now", count, " is" if count == 1 else "s are")


async def _after(before: list[asyncio.Task[None]], scaler: Scaler) -> None:
    if before:
        await asyncio.wait(before)
    await scaler.run()
