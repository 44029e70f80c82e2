"""README.md and the tour, followed word for word by a user: each command and program is run and does what it says."""

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

from tests.readme.documents import OVER_BROKERS, README, TOUR, Block, blocks
from tests.readme.user import User
from tests.support.brokers import Mosquitto
from tests.support.processes import READY, ROOT, Processes, Service, environment, until

BLOCKS = [block for page in (README, TOUR, OVER_BROKERS) for block in blocks(page)]
WITH_MQTT = " --mqtt mqtt://127.0.0.1:1883"
DEMO_WITHIN_S = 600.0
WORKER = "run(Listener("
VENV = ROOT / ".venv"

_OF_MAKE = {"MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS"}


def block_with(text: str, language: str) -> Block:
    found = [block for block in BLOCKS if block.language == language and text in block.text]
    assert len(found) == 1, (text, len(found))
    return found[0]


def file_of(block: Block) -> str:
    return str(re.findall(r"`(\w+\.py)`", block.before)[0])


class Reader(User):
    async def serve(self) -> Service:
        text = block_with("queuebell serve\n", "sh").text
        # Without a shell in between, which Ctrl-C would end as well.
        service: Service = await self.start(text.replace("queuebell serve", "exec queuebell serve"), "serve")
        return service

    def write(self, block: Block) -> str:
        return self.save(file_of(block), block.text)


def test_every_block_is_run() -> None:
    """Every block is of a kind that the tests below run, or that setting up this checkout has run."""
    known = [
        ("", "producer: put"),
        ("sh", "pip install -e"),
        ("python", "async with Bridge("),
        ("sh", "make demo"),
        ("sh", "make test"),
        ("sh", "queuebell serve\n"),
        ("python", WORKER),
        ("python", "open_store("),
        ("sh", "orders/messages"),
        ("python", "publisher.publish"),
        ("sh", "/v1/triggers/"),
        ("sh", "tests.simulation"),
        ("sh", "serve --nats"),
        ("sh", "--data ./other-data"),
        ("sh", "mosquitto_pub"),
    ]
    assert [block_with(text, language) for language, text in known] == BLOCKS


PROOFS = {"queuebell check": "116 s", "tests.simulation": "lost", "bench cost": "79,200"}


async def test_in_one_sitting(processes: Processes, tmp_path: Path) -> None:
    """Word for word and in order, with the bridge of the first section left running, each part does what it says."""
    reader = Reader(processes, tmp_path)
    serve = await reader.serve()
    assert (await serve.line(READY)) == f"{READY}{reader.url}"
    worker = await reader.start("exec python " + reader.write(block_with(WORKER, "python")), "worker")
    producer = reader.write(block_with("open_store(", "python"))
    await reader.run(f"python {producer}")
    await worker.line("charging order 17")

    by_command = {line.split()[0] + " " + line.split()[1]: line for line in block_with("orders/messages", "sh").lines}
    curl, put, listen, status = by_command.values()
    assert list(by_command)[1:] == ["queuebell queue", "queuebell listen", "queuebell status"]
    await reader.run(curl)
    await worker.line("charging order 18")
    await reader.run(put)
    await worker.line("charging order 19")
    worker.interrupt()
    assert await worker.ended() == 0
    said = worker.errors.splitlines()
    assert len(said) == 2 and "listens to billing/orders; store " in said[0] and "stopping; " in said[1], said

    command = await reader.start(f"exec {listen}", "listen")
    await reader.run(put)
    await command.line("order 19")
    # Whatever shell runs the command, a body comes out as it went in.
    await reader.run(put.replace("order 19", r"a\nb \033[1m $HOME"))
    await command.line(r"a\nb \033[1m $HOME")
    shown = "\n".join(await reader.run(status))
    assert f"bridge at {reader.url}: ready" in shown
    assert re.search(r"websocket +billing/orders", shown), shown
    assert re.search(r"^billing/orders +0 +[01] +[01] +0 +now +clean +1 ", shown, re.MULTILINE), shown
    command.interrupt()
    assert await command.ended() == 0

    async with aiohttp.ClientSession() as serve.asking:
        serve.url = reader.url

        async def triggers() -> int:
            return int((await serve.queue("billing/orders")).get("triggers", 0))

        before = await triggers()
        await reader.run("python " + reader.write(block_with("publisher.publish", "python")))
        assert await triggers() == before + 1
        await reader.run(block_with("/v1/triggers/", "sh").text)
        assert await triggers() == before + 2

    one = await reader.start("exec python " + reader.write(block_with("async with Bridge(", "python")), "one")
    await one.line("charging order 20")
    one.interrupt()
    assert await one.ended() == 0
    assert one.errors == ""

    serve.interrupt()
    assert await serve.ended() == 0
    assert serve.errors.splitlines()[-1].endswith("stopped")
    assert (tmp_path / "queuebell-data" / "queue.db").exists()
    # The page about brokers begins so: the same data, another bridge.
    (again,) = block_with("serve --nats", "sh").lines
    serve = await reader.start(f"exec {again.removesuffix(WITH_MQTT)}", "serve")
    await serve.line(READY)
    serve.interrupt()
    assert await serve.ended() == 0


class BrokerReader(Reader):
    async def begin(self) -> None:
        (serve,) = block_with("serve --nats", "sh").lines
        self.bridge: Service = await self.start(f"exec {serve}", "bridge")
        await self.bridge.line(READY)
        elsewhere, listen = block_with("--data ./other-data", "sh").lines
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


@pytest.mark.rest
@pytest.mark.timeout(3000)
async def test_the_proofs(processes: Processes, tmp_path: Path) -> None:
    """Each command that proves something ends well, and says what it found."""
    reader = Reader(processes, tmp_path)
    serve = await reader.serve()
    await serve.line(READY)
    for line in block_with("tests.simulation", "sh").lines:
        said = "\n".join(await reader.run(line, within_s=900.0))
        found = next(word for name, word in PROOFS.items() if name in line)
        assert found in said
