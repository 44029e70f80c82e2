"""The Azure endpoint beside Azurite, Microsoft's emulator, with its default store on the disk.

Azurite is an npm package and not installed with ours: ``npm install azurite``; QUEUEBELL_BENCH_AZURITE names its
program (``node_modules/.bin/azurite-queue``).
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from bench.figures import Report, median_ratio
from bench.machine import cpu_seconds
from bench.sizes import Scale
from bench.stage import Child, Stage

PROGRAM = "QUEUEBELL_BENCH_AZURITE"
CONNECTIONS = 16
KINDS = {"put": "put", "get": "get", "delete": "delete", "empty": "empty get"}
OFTEN = {"empty": 8}
"""More of what needs no message: a few hundred are over before a processor that slept has woken."""
TARGET = 2.5
SDK_TARGET = 1.0


class Side:
    """One of the two servers, and what was measured of it, by kind of request."""

    def __init__(self, child: Child, url: str) -> None:
        self.child = child
        self.url = url
        self.rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
        """Milliseconds on the processor for one request."""
        self.client: dict[str, list[float]] = {kind: [] for kind in KINDS}
        """The client's share of a core meanwhile."""
        self.sdk: list[float] = []

    async def run(self, client: Child, count: int, laps: int) -> None:
        """Put, get and delete so many messages, and ask the empty queue more often; lap after lap."""
        found = {kind: Sum() for kind in KINDS}
        for _ in range(laps):
            for kind, total in found.items():
                before = cpu_seconds(self.child.pid) or 0.0
                ran = await client.ask(kind, url=self.url, count=count * OFTEN.get(kind, 1), connections=CONNECTIONS)
                total.server += (cpu_seconds(self.child.pid) or 0.0) - before
                total.seconds += ran["seconds"]
                total.client += ran["cpu"]
        for kind, total in found.items():
            asked = count * OFTEN.get(kind, 1) * laps
            self.rates[kind].append(asked / total.seconds)
            self.costs[kind].append(1000 * total.server / asked)
            self.client[kind].append(total.client / total.seconds)

    def forget(self) -> None:
        """Forget what was measured so far."""
        for lists in (self.rates, self.costs, self.client):
            for samples in lists.values():
                samples.clear()
        self.sdk.clear()


class Sum(msgspec.Struct):
    """Seconds of all laps: of the clock, and of the server and the client on the processor."""

    seconds: float = 0.0
    server: float = 0.0
    client: float = 0.0


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Requests a second of each kind at both, in turns, over equally many messages."""
    report = Report("Azure endpoint, beside Azurite")
    program = shutil.which(os.environ.get(PROGRAM, ""))
    if program is None or find_spec("azure") is None:
        raise RuntimeError(f"needs Azurite and the SDK: set {PROGRAM}, pip install azure-storage-queue")
    program = str(Path(program).resolve())  # it runs in a folder of its own
    client = await stage.role("azure_client")
    canned = await stage.role("azure_client", "canned")
    ours, azurite = Side(*await stage.azure_endpoint()), Side(*await stage.azurite(program))
    for side in (ours, azurite):
        await client.ask("create", url=side.url)
    ceilings: list[float] = []
    # One round more than counts: Node's compiler and the files' first growth are nobody's rate.
    for turn in range(scale.azure_rounds + 1):
        order = (ours, azurite) if turn % 2 else (azurite, ours)
        for side in order:
            await side.run(client, scale.azure_messages, scale.azure_laps)
        for side in order:
            side.sdk.append(await client.ask("sdk", url=side.url, count=scale.azure_sdk))
        count = scale.azure_messages * scale.azure_laps
        ran = await client.ask("ceiling", url=canned.ready["url"], count=count, connections=CONNECTIONS)
        if not turn:
            ours.forget()
            azurite.forget()
            continue
        ceilings.append(count / ran["seconds"])
        told = (
            f"{label} {ours.rates[kind][-1]:,.0f} / {azurite.rates[kind][-1]:,.0f}" for kind, label in KINDS.items()
        )
        say(f"round {turn}, a second, ours / Azurite: {', '.join(told)}")
    for kind, label in KINDS.items():
        report.at_least(f"{label}, times Azurite", median_ratio(ours.rates[kind], azurite.rates[kind]), TARGET)
    for kind, label in KINDS.items():
        rates = " / ".join(f"{statistics.median(side.rates[kind]):,.0f}" for side in (ours, azurite))
        costs = " / ".join(f"{statistics.median(side.costs[kind]):.3f}" for side in (ours, azurite))
        report.tell(f"{label}: requests a second, ours / Azurite", rates)
        report.tell(f"{label}: milliseconds of processor for one, ours / Azurite", costs)
    report.at_least("through the Python SDK, times Azurite", median_ratio(ours.sdk, azurite.sdk), SDK_TARGET)
    sdk = " / ".join(f"{statistics.median(side.sdk):,.0f}" for side in (ours, azurite))
    report.tell("through the Python SDK: calls a second, ours / Azurite", sdk)
    busiest = max(statistics.median(samples) for samples in ours.client.values())
    report.notes.append(
        f"Azurite {_version(program)} with its default store on the disk, which it does not sync; ours syncs before "
        f"it answers. {CONNECTIONS} connections with one request under way on each; {scale.azure_messages} messages "
        f"of 100 bytes put, taken one by one and deleted, then {OFTEN['empty']} times as many gets of the empty queue, "
        f"{scale.azure_laps} times a round (Azurite's get slows down with the depth of the queue), all under Shared "
        "Key, signed and written before the clock started; both servers and the client are processes of their own, "
        f"in turns. The client used {busiest:.2f} of a core at its busiest with ours, and sends "
        f"{statistics.median(ceilings):,.0f} a second to a server that answers without looking. "
        f"The SDK is azure-storage-queue {version('azure-storage-queue')}, one thread: put, get, delete."
    )
    return report


def _version(program: str) -> str:
    text = Path(program).resolve().parents[3].joinpath("package.json").read_text("utf-8")
    return text.partition('"version": "')[2].partition('"')[0]
