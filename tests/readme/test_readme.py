"""README.md and the page about brokers, followed word for word: each command and program is run and works."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.readme.documents import OVER_BROKERS, README, Block, blocks
from tests.readme.user import User
from tests.support.brokers import Mosquitto
from tests.support.processes import READY, ROOT, Processes, Service, environment, until

BLOCKS = [block for page in (README, OVER_BROKERS) for block in blocks(page)]
WITH_MQTT = " --mqtt mqtt://127.0.0.1:1883"
DEMO_WITHIN_S = 600.0
VENV = ROOT / ".venv"

_OF_MAKE = {"MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS"}


def block_with(text: str, language: str) -> Block:
    found = [block for block in BLOCKS if block.language == language and text in block.text]
    assert len(found) == 1, (text, len(found))
    return found[0]


def file_of(block: Block) -> str:
    return str(re.findall(r"`(\w+\.py)`", block.before)[0])


class Reader(User):
    def write(self, block: Block) -> str:
        return self.save(file_of(block), block.text)


def test_every_block_is_run() -> None:
    known = [
        ("", "producer: put"),
        ("sh", "pip install -e"),
        ("python", "async with Bridge("),
        ("sh", "make demo"),
        ("sh", "make test"),
        ("sh", "serve --nats"),
        ("sh", "--data ./other-data"),
        ("sh", "queuebell listen"),
        ("sh", "mosquitto_pub"),
    ]
    assert [block_with(text, language) for language, text in known] == BLOCKS


async def test_the_file_of_the_readme_runs(processes: Processes, tmp_path: Path) -> None:
    """Bridge, producer and worker in one process; it ends with Ctrl-C and writes no error."""
    reader = Reader(processes, tmp_path)
    one = await reader.start("exec python " + reader.write(block_with("async with Bridge(", "python")), "one")
    await one.line("charging order 20")
    one.interrupt()
    assert await one.ended() == 0
    assert one.errors == ""


async def test_the_bridge_of_the_page_about_brokers_starts(processes: Processes, tmp_path: Path) -> None:
    """Without the broker that this machine may lack; `test_over_mqtt_to_a_worker_on_nats` has it."""
    reader = Reader(processes, tmp_path)
    (line,) = block_with("serve --nats", "sh").lines
    serve = await reader.start(f"exec {line.removesuffix(WITH_MQTT)}", "serve")
    assert (await serve.line(READY)) == f"{READY}{reader.url}"
    serve.interrupt()
    assert await serve.ended() == 0
    assert serve.errors.splitlines()[-1].endswith("stopped")


class BrokerReader(Reader):
    async def begin(self) -> None:
        (serve,) = block_with("serve --nats", "sh").lines
        self.bridge: Service = await self.start(f"exec {serve}", "bridge")
        await self.bridge.line(READY)
        (elsewhere,), (listen,) = (block_with(text, "sh").lines for text in ("--data ./other-data", "queuebell listen"))
        self.elsewhere: Service = await self.start(f"exec {elsewhere}", "elsewhere")
        await self.elsewhere.line(READY)
        self.worker = await self.start(f"exec {listen}", "worker")
        self.put, self.by_mqtt, self.by_nats = block_with("mosquitto_pub", "sh").lines
        async with aiohttp.ClientSession() as self.bridge.asking:
            self.bridge.url = self.url
            await self.bridge.has_listeners(1)
            await self.bridge.is_clean("billing/orders")

            async def ready() -> bool:
                return (await self.bridge.ask("/readyz"))[0] == 200

            await until(ready, "the bridge is ready")

    async def order(self, trigger: str) -> None:
        """Put one message, ring for it, and wait until the worker has handled it."""
        heard = len(self.worker.lines)
        await self.run(self.put)
        await self.run(trigger)
        await self.worker.line("order 21", since=heard)

    async def end(self) -> None:
        for program in (self.worker, self.elsewhere, self.bridge):
            program.interrupt()
            assert await program.ended() == 0, program.errors


@pytest.mark.system
async def test_over_mqtt_to_a_worker_on_nats(processes: Processes, tmp_path: Path) -> None:
    """As above from mosquitto_pub; `kill -9` of either broker in between changes nothing but the latency."""
    reader = BrokerReader(processes, tmp_path)
    mosquitto = Mosquitto(tmp_path / "mosquitto")
    mosquitto.port = int(reader.ports["1883"])
    async with mosquitto:
        await reader.begin()
        await reader.order(reader.by_mqtt)
        await reader.order(reader.by_nats)
        for down in ("mqtt", "nats"):
            if down == "mqtt":
                await mosquitto.restart()
            else:
                pid = int(re.findall(r"NATS server is listening.*pid=(\d+)", reader.bridge.errors)[-1])
                os.killpg(pid, signal.SIGKILL)
            await reader.bridge.complains("bus disconnected", f"bus={down}")
            await until(lambda down=down: _up_again(reader.bridge, down), f"{down} is back")  # type: ignore[misc]
            await reader.order(reader.by_mqtt)
            await reader.order(reader.by_nats)
        await reader.end()


def _up_again(bridge: Service, bus: str) -> bool:
    return sum("bus connected" in line and f"bus={bus}" in line for line in bridge.errors.splitlines()) == 2


@pytest.mark.rest
@pytest.mark.timeout(2 * DEMO_WITHIN_S)
def test_demo(tmp_path: Path) -> None:
    """`make demo` ends with 0: by make where its set-up is allowed or done, else the same command."""
    (target,) = block_with("make demo", "sh").lines
    by_make = bool(os.environ.get("CI")) or (VENV / "runtime.stamp").exists()
    ran = subprocess.run(
        shlex.split(target) if by_make else [sys.executable, "-m", "queuebell", "demo"],
        cwd=ROOT if by_make else tmp_path,
        # What a make around this test was given (ARGS) is not meant for this one.
        env={name: value for name, value in environment().items() if name not in _OF_MAKE},
        capture_output=True,
        text=True,
        timeout=DEMO_WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    for word in ("kill -9", "receives", "p99", "polling"):
        assert word in ran.stdout, word
