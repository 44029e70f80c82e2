"""Workers as units of systemd: instances of one template unit, started and stopped by ``systemctl``.

``queuebell-worker@`` becomes ``queuebell-worker@1.service``, ``@2`` and so on, the lowest free numbers first. They are
systemd's: they go on when the scaler ends, whatever ended it, and the next one finds them.

A unit is ready when systemd calls it active: with ``Type=notify`` as soon as its listener has a session, because a
worker with ``QUEUEBELL_STARTER=systemd`` reports to systemd (`listeners.work.starter`). Its status text shows whether
it is busy, and how often it has been. A worker without a status text ends only while the queue is quiet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.listeners.scaling.actuators.base import NotSeen, ProcessEvents, StartFailed, Watch
from queuebell.listeners.scaling.actuators.program import call
from queuebell.listeners.work.failures import RepeatedFailure
from queuebell.listeners.work.starter import BUSY, IDLE

log = logging.getLogger("queuebell.scaler")

PROGRAM: Final = "systemctl"
PROPERTIES: Final = "Id,ActiveState,Job,Result,ExecMainStatus,StatusText"
TEMPLATE: Final = re.compile(r"([A-Za-z0-9:_.\\-]{1,200})@(\.service)?")
CODE: Final = re.compile(r"[0-9]{1,9}")
NUMBER: Final = re.compile(r"[1-9][0-9]{0,5}")
LIVE: Final = frozenset({"active", "activating", "reloading", "refreshing", "deactivating", "maintenance"})
EVERY_S: Final = 1.0
AGAIN_S: Final = 5.0


class Unit(msgspec.Struct):
    """One instance as systemd shows it."""

    number: int
    state: str = "inactive"
    job: bool = False
    """Something is to be done with it that systemd has not got round to."""
    result: str = "success"
    code: int = 0
    text: str = ""

    @property
    def lives(self) -> bool:
        """Whether it runs, starts or ends."""
        return self.job or self.state in LIVE

    @property
    def works(self) -> bool:
        """Whether it is ready."""
        return self.state in ("active", "reloading", "refreshing")


class Instance(msgspec.Struct):
    """One instance that is scaled."""

    name: str
    number: int
    ready: bool = False
    text: str = ""
    ending: bool = False


class SystemdActuator:
    """Starts and stops instances of ``unit``, a template's name with its ``@``; ``user`` means the user's own systemd.

    ``within_s`` is how long a call of ``systemctl`` may take, ``every_s`` how often it is asked while an instance runs.
    Raises `ConfigurationError` for a name that is none of a template.
    """

    outlives = True

    def __init__(self, unit: str, *, user: bool = False, within_s: float = 30.0, every_s: float = EVERY_S) -> None:
        match = TEMPLATE.fullmatch(unit)
        if match is None:
            raise ConfigurationError(f"unit: {unit!r} is not a template unit; end its name with @, as in worker@")
        self._template = match[1]
        self._scope = ["--user"] if user else []
        self._within_s = within_s
        self._instances: dict[str, Instance] = {}
        self._count = 0
        self._used: set[int] = set()
        self._turn = asyncio.Lock()
        self._events: ProcessEvents | None = None
        self._watch = Watch(str(self), self.look, every_s=every_s, wanted=lambda: bool(self._instances))
        self._seen = False
        """Whether it was ever seen what runs already."""
        self._closed = False
        self.unseen: str | None = None

    def __str__(self) -> str:
        return f"{self._template}@.service"

    async def open(self, events: ProcessEvents) -> None:
        """Find the instances that run already."""
        self._events = events
        try:
            self._adopt(await self._show())
        except NotSeen as unseen:
            log.warning("%s: cannot list the running workers: %s", self, unseen)
        self._watch.begin()

    async def start(self, count: int) -> list[str]:
        """Start the lowest numbers that are free; ready is reported when systemd calls them active."""
        async with self._turn:
            try:
                units = await self._show()
            except NotSeen as unseen:
                raise StartFailed(str(unseen)) from unseen
            if not self._seen and self._adopt(units):
                ids = self.running()
                if self._events is not None:
                    self._events.found(ids)
                raise StartFailed(f"{len(ids)} workers run that were not seen before; the queue is counted again")
            taken = {unit.number for unit in units if unit.lives} | {each.number for each in self._instances.values()}
            free = (number for number in range(1, len(taken) + count + 1) if number not in taken)
            begun = [self._begin(number) for number, _ in zip(free, range(count), strict=False)]
            names = [self._unit(each.number) for each in begun]
            try:
                await self._call("start", "--no-block", "--no-ask-password", "--", *names)
            except StartFailed:
                for each in begun:
                    del self._instances[each.name]
                with contextlib.suppress(StartFailed):  # some of them may have been taken on
                    await self._call("stop", "--no-block", "--no-ask-password", "--", *names)
                raise
        return [each.name for each in begun]

    async def stop(self, ids: Sequence[str]) -> None:
        """Stop these: SIGTERM, and SIGKILL after the unit's TimeoutStopSec; retried until systemd accepts it."""
        failures = RepeatedFailure()
        while not self._closed:
            ending = [self._instances[number] for number in ids if number in self._instances]
            if not ending:
                return
            async with self._turn:
                try:
                    names = [self._unit(each.number) for each in ending]
                    await self._call("stop", "--no-block", "--no-ask-password", "--", *names)
                    for each in ending:
                        each.ending = True
                    return
                except StartFailed as failed:
                    if failures.failed(asyncio.get_running_loop().time()):
                        log.error("workers could not be stopped: %s; retrying", failed)
            await asyncio.sleep(AGAIN_S)

    async def look(self) -> None:
        """Ask systemd for all instances, and report what has changed."""
        async with self._turn:
            units = {unit.number: unit for unit in await self._show()}
            for each in list(self._instances.values()):
                unit = units.get(each.number, Unit(each.number))  # what has ended in order is soon unloaded
                if unit.lives:
                    self._report(each, unit)
                else:
                    self._end(each, unit)

    def running(self) -> list[str]:
        """Return the ids of all instances that were started or found and have not ended."""
        return list(self._instances)

    async def close(self) -> None:
        """Release them: they go on."""
        self._closed = True
        await self._watch.close()

    def _begin(self, number: int) -> Instance:
        self._count += 1
        name = f"@{number}"
        if number in self._used:  # a number is used again, an id never
            name = f"@{number}.{self._count}"
        self._used.add(number)
        self._instances[name] = Instance(name, number)
        return self._instances[name]

    def _adopt(self, units: list[Unit]) -> bool:
        """Adopt what runs already; return whether anything does."""
        self._seen = True
        for unit in units:
            if unit.lives and unit.state != "deactivating":
                self._begin(unit.number)
        return bool(self._instances)

    def _report(self, each: Instance, unit: Unit) -> None:
        if self._events is None or each.ending:
            return
        if unit.works and not each.ready:
            each.ready = True
            self._events.ready(each.name)
        state = unit.text.partition(" ")[0].encode()
        if each.ready and unit.text != each.text and state in (BUSY, IDLE):
            each.text = unit.text
            self._events.busy_changed(each.name, busy=state == BUSY)

    def _end(self, each: Instance, unit: Unit) -> None:
        del self._instances[each.name]
        if self._events is None:
            return
        failed = unit.state == "failed"
        how = f"{unit.result}, exit code {unit.code}" if failed else "ended in order"
        journal = f"; journalctl {' '.join([*self._scope, '-u', self._unit(each.number)])}" if failed else ""
        self._events.ended(each.name, (unit.code or 1) if failed else 0, f"{how}{journal}")

    def _unit(self, number: int) -> str:
        return f"{self._template}@{number}.service"

    async def _show(self) -> list[Unit]:
        try:
            # Of a pattern systemd shows what it has loaded: all that run, and those that failed.
            text = await self._call(
                "show", "--no-pager", f"--property={PROPERTIES}", "--", f"{self._template}@*.service", whole=True
            )
        except StartFailed as failed:
            self.unseen = str(failed)
            raise NotSeen(self.unseen) from failed
        self.unseen = None
        blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in text.split("\n\n")]
        return [unit for block in blocks if (unit := self._read(block)) is not None]

    def _read(self, block: dict[str, str]) -> Unit | None:
        number = block.get("Id", "").removeprefix(f"{self._template}@").removesuffix(".service")
        if not NUMBER.fullmatch(number):
            return None  # a named instance, not one of the scaler's
        code = block.get("ExecMainStatus", "")
        return Unit(
            int(number),
            block.get("ActiveState", ""),
            block.get("Job", "0") not in ("", "0"),
            block.get("Result", ""),
            int(code) if CODE.fullmatch(code) else 0,
            block.get("StatusText", ""),
        )

    async def _call(self, verb: str, *words: str, whole: bool = False) -> str:
        """Return what ``systemctl`` printed. Raises `StartFailed`."""
        environment = {"LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"}
        try:
            return await call(
                [PROGRAM, *self._scope, verb, *words],
                f"to {verb}",
                within_s=self._within_s,
                environment=environment,
                whole=whole,
            )
        except StartFailed as failed:
            raise StartFailed(f"{failed}{_advice(str(failed))}") from failed


def _advice(text: str) -> str:
    if "authentication required" in text or "Access denied" in text:
        return "; the scaler's user needs a rule of polkit for these units (docs/how-to/scaling.md)"
    return ""
