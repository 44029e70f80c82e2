"""The two docker-compose files and Dockerfile: their form, for there is no engine here to run them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from listeners import Listener
from queuebell.command.main import SUBCOMMANDS
from queuebell.settings import parse_listen
from tests.support.command import ROOT
from tests.support.processes import free_port, until
from tests.support.web import Served, serving

CLUSTER = "docker-compose.cluster.yml"
FILES = ("docker-compose.yml", CLUSTER)


def compose(file: str = FILES[0]) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / file).read_text())
    return loaded


def parsed(command: list[str]) -> argparse.Namespace:
    """Parse a service's command as `queuebell` would."""
    subcommand = SUBCOMMANDS[command[0]]
    parser = argparse.ArgumentParser()
    importlib.import_module(subcommand.module).add_arguments(parser)
    # As `queuebell.command.main` does: one with commands of its own cannot be parsed intermixed.
    return (parser.parse_args if subcommand.nested else parser.parse_intermixed_args)(command[1:])


WORKERS = {"worker-websocket": "http://bridge:8470", "worker-nats": "nats://nats:4222"}
BROKERS = {"nats": 4222, "mosquitto": 1883}
BRIDGES = ("bridge-1", "bridge-2", "bridge-3")
SERVERS = ("nats-1", "nats-2", "nats-3")
CLUSTER_WORKERS = {
    "worker-balanced": "http://balancer:8470",
    "worker-list": "http://bridge-1:8470,bridge-2:8470,bridge-3:8470",
}


def test_a_bridge_two_brokers_and_two_workers() -> None:
    """One image of ours, and two workers that wait until the bridge is healthy; the bridge waits for nobody."""
    services = compose()["services"]
    assert set(services) == {"bridge", *WORKERS, *BROKERS}
    assert len({services[name]["image"] for name in ("bridge", *WORKERS)}) == 1
    for name in WORKERS:
        assert services[name]["depends_on"] == {"bridge": {"condition": "service_healthy"}}
    assert "depends_on" not in services["bridge"]
    # A bridge whose broker is away works on: /readyz, and with it `queuebell status`, would call it unhealthy.
    assert "/livez" in " ".join(services["bridge"]["healthcheck"]["test"])
    for service in services.values():
        assert service["healthcheck"]["test"][0] == "CMD"


async def health(name: str, bridge: str, file: str = FILES[0]) -> int | None:
    """Return the exit code of a worker's check, asked here of another bridge."""
    _, _, *words = compose(file)["services"][name]["healthcheck"]["test"]
    meant = ["http://bridge:8470"] if file != CLUSTER else [f"http://{each}:8470" for each in BRIDGES]
    assert all(words[1].count(each) == 1 for each in meant)
    for each in meant[:-1]:
        # Nobody is there: the others are asked too.
        words[1] = words[1].replace(each, f"http://127.0.0.1:{free_port()}")
    words[1] = words[1].replace(meant[-1], bridge)
    asking = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
    _, errors = await asking.communicate()
    assert errors == b""
    return asking.returncode


@contextlib.asynccontextmanager
async def listening(served: Served, name: str | None) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        listener = Listener(served.server.url, "billing/orders", print, name=name)
        group.create_task(listener.run(), name="worker")
        await until(served.bridge.listeners, "a session")
        yield
        await listener.stop()


async def test_a_worker_is_healthy_while_the_bridge_holds_its_session() -> None:
    """Its check says so by its exit code; a session of another worker does not count."""
    async with serving() as served:
        assert await health("worker-nats", served.server.url) == 1
        async with listening(served, "another:1"):
            assert await health("worker-nats", served.server.url) == 1
        async with listening(served, None):
            assert [await health(name, served.server.url) for name in WORKERS] == [0, 0]
            assert [await health(name, served.server.url, CLUSTER) for name in CLUSTER_WORKERS] == [0, 0]
        assert await health("worker-nats", served.server.url) == 1


def test_ports_are_published_on_loopback_only() -> None:
    """Without authentication nobody outside this machine may reach the bridge or its brokers."""
    services = compose()["services"]
    ports = {"bridge": 8470, **BROKERS}
    for name, port in ports.items():
        assert services[name]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert not any("ports" in service for name, service in services.items() if name not in ports)


@pytest.mark.parametrize("file", FILES)
def test_every_service_is_confined(file: str) -> None:
    """No capabilities, no new privileges, a root file system that cannot be written."""
    for service in compose(file)["services"].values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is True


def test_the_commands_are_ones_that_queuebell_takes() -> None:
    """Each service's words parse, and the addresses in them are those of the services."""
    services = compose()["services"]
    serve = parsed(services["bridge"]["command"])
    assert parse_listen(serve.listen) == ("0.0.0.0", 8470)
    assert serve.insecure_public
    assert serve.allowed_hosts == "bridge"
    assert (serve.nats, serve.mqtt) == (["nats://nats:4222"], ["mqtt://mosquitto:1883"])
    for name, bridge in WORKERS.items():
        listen = parsed(services[name]["command"])
        assert (listen.store, listen.bridge, listen.queue) == ("http://bridge:8470", bridge, "billing/orders")
        # Compose reads a single dollar as a variable of its own.
        assert "$" not in listen.command.replace("$$", "")


def test_the_image_runs_as_a_user_of_its_own() -> None:
    """The Dockerfile installs by hash, copies only what is there, and drops root before it runs."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    user = next(index for index, line in enumerate(lines) if line.startswith("USER "))
    entry = next(index for index, line in enumerate(lines) if line.startswith("ENTRYPOINT "))
    assert user < entry
    assert lines[user] != "USER root"
    assert any("--require-hashes" in line for line in lines)
    for line in lines:
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source


def test_a_cluster_of_three_bridges_on_three_brokers() -> None:
    """Each service waits for what it cannot do without, and one port is published."""
    services = compose(CLUSTER)["services"]
    assert set(services) == {*BRIDGES, *SERVERS, *CLUSTER_WORKERS, "postgres", "tables", "balancer"}
    assert len({services[name]["image"] for name in (*BRIDGES, *CLUSTER_WORKERS, "tables")}) == 1
    assert services["tables"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in BRIDGES:
        assert services[name]["hostname"] == name
        assert services[name]["depends_on"] == {"tables": {"condition": "service_completed_successfully"}}
    for name in CLUSTER_WORKERS:
        assert services[name]["depends_on"] == {"balancer": {"condition": "service_healthy"}}
    for service in services.values():
        assert service["healthcheck"]["test"][0] == "CMD"
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {"balancer": ["127.0.0.1:8470:8470"]}


def test_the_commands_of_the_cluster_are_ones_that_queuebell_takes() -> None:
    """The bridges have one name, all NATS servers, and the database; none of the words holds a password."""
    services = compose(CLUSTER)["services"]
    for name in BRIDGES:
        serve = parsed(services[name]["command"])
        assert (parse_listen(serve.listen), serve.cluster) == (("0.0.0.0", 8470), "shop")
        assert serve.nats == [f"nats://{','.join(f'{each}:4222' for each in SERVERS)}"]
        assert serve.allowed_hosts.split(",") == ["balancer", *BRIDGES]
        assert services[name]["environment"]["QUEUEBELL_STORE"].endswith("@postgres:5432/queuebell")
    for name, store in CLUSTER_WORKERS.items():
        listen = parsed(services[name]["command"])
        assert (listen.store, listen.queue) == (store, "billing/orders")
        assert "$" not in listen.command.replace("$$", "")
    assert parsed(services["tables"]["command"]).notify
    routes = [word for word in services["nats-1"]["command"] if word.startswith("--routes=")]
    assert routes == ["--routes=" + ",".join(f"nats://{each}:6222" for each in SERVERS)]
