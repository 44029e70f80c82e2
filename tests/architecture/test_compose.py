"""docker-compose.yml and Dockerfile: their form, for there is no engine here to run them."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import yaml

from bridge.cli.main import SUBCOMMANDS
from bridge.config import parse_listen
from tests.support.command import ROOT


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def parsed(command: list[str]) -> argparse.Namespace:
    """Parse a service's command as `queuebell` would."""
    subcommand = SUBCOMMANDS[command[0]]
    parser = argparse.ArgumentParser()
    importlib.import_module(subcommand.module).add_arguments(parser)
    return parser.parse_intermixed_args(command[1:])


def test_a_bridge_and_two_workers() -> None:
    """One image, one bridge, two workers that wait until it is healthy."""
    services = compose()["services"]
    assert set(services) == {"bridge", "worker-1", "worker-2"}
    assert len({service["image"] for service in services.values()}) == 1
    for name in ("worker-1", "worker-2"):
        assert services[name]["depends_on"] == {"bridge": {"condition": "service_healthy"}}


def test_the_port_is_published_on_loopback_only() -> None:
    """Without authentication nobody outside this machine may reach the bridge."""
    services = compose()["services"]
    assert services["bridge"]["ports"] == ["127.0.0.1:8470:8470"]
    assert not any("ports" in service for name, service in services.items() if name != "bridge")


def test_every_service_is_confined() -> None:
    """No capabilities, no new privileges, a root file system that cannot be written."""
    for service in compose()["services"].values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is True


def test_the_commands_are_ones_that_queuebell_takes() -> None:
    """Each service's words parse, and the workers' addresses are allowed by the bridge."""
    services = compose()["services"]
    serve = parsed(services["bridge"]["command"])
    assert parse_listen(serve.listen) == ("0.0.0.0", 8470)
    assert serve.insecure_public
    assert serve.allowed_hosts == "bridge"
    for name in ("worker-1", "worker-2"):
        listen = parsed(services[name]["command"])
        assert (listen.store, listen.bridge, listen.queue) == (
            "http://bridge:8470",
            "http://bridge:8470",
            "billing/orders",
        )
        # Compose reads a single dollar as a variable of its own.
        assert "$" not in listen.command.replace("$$", "")


def test_the_data_is_on_a_volume() -> None:
    """Messages outlive the container."""
    loaded = compose()
    assert loaded["services"]["bridge"]["volumes"] == ["queue:/data"]
    assert "queue" in loaded["volumes"]
    assert parsed(loaded["services"]["bridge"]["command"]).data == "/data"


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
