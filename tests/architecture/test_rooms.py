"""The import rule: what stands in the table, nothing else; pure rooms see no world."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.architecture.rooms import FLOORS, PACKAGES, arrows, files, imports, modules
from tests.support.command import ROOT, environment

OPEN = {"brokers", "contract", "observe", "producer", "queues", "storage"}
"""The rooms of `bridge` that listeners may see, themselves and through others."""
ENTRIES_MAX = 12
"""At the root of a package: more is a corridor in which nobody finds a door."""
MARKERS = {"__init__.py", "__pycache__", "py.typed"}
"""What every package has, and nobody opens."""
PURE = (
    "bridge.access.broker_grants",
    "bridge.access.certificates",
    "bridge.access.grants",
    "bridge.access.issuer",
    "bridge.access.keys",
    "bridge.access.limits",
    "bridge.contract",
    "bridge.core",
    "bridge.keda.scaled_object",
    "bridge.producer.publication",
    "bridge.service.state.check",
    "bridge.service.state.answers",
    "listeners.wake",
    "listeners.scaling.processes",
    "listeners.scaling.scaled_queue",
)
PURE_MODULES = {
    "__future__", "ast", "base64", "binascii", "bisect", "collections", "contextlib", "dataclasses", "datetime",
    "difflib", "enum", "functools", "hashlib", "heapq", "ipaddress", "itertools", "math", "msgspec", "operator", "re",
    "tomllib", "types", "typing", "zlib",
}  # fmt: skip
"""What a pure room may import beside rooms: nothing that knows the time, draws lots, or reaches the world."""
CLOCKS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter"}


def unplanned(root: pathlib.Path) -> list[str]:
    """Each arrow between rooms stands in the table, and what stands there is used."""
    table = {(here, there) for floor in FLOORS for here, allowed in floor.items() for there in allowed.split()}
    found = arrows(root)
    bad = [f"{each.source} -> {each.target}" for arrow in found.keys() - table for each in found[arrow]]
    return bad + [f"unused: {here} -> {there}" for here, there in sorted(table - found.keys())]


def upward(root: pathlib.Path) -> list[str]:
    """Arrows go down: whoever follows imports, type-only ones as well, never comes back to a room."""
    floor = {name: number for number, rooms in enumerate(FLOORS) for name in rooms}
    return [
        f"{each.source} -> {each.target}"
        for (here, there), found in arrows(root).items()
        if here in floor and there in floor and floor[here] >= floor[there]
        for each in found
    ]


def circular(root: pathlib.Path) -> list[str]:
    """Nothing comes back to the module that it was imported by, type-only imports included; each circle is named."""
    ways: dict[str, set[str]] = {name: set() for name in files(root)}
    for each in imports(root):
        if each.source in ways and each.target in ways and each.source != each.target:
            ways[each.source].add(each.target)
    circles: list[str] = []
    done: set[str] = set()
    chain: list[str] = []

    def follow(name: str) -> None:
        if name in chain:
            circles.append(" -> ".join([*chain[chain.index(name) :], name]))
        elif name not in done:
            chain.append(name)
            for target in sorted(ways[name]):
                follow(target)
            done.add(chain.pop())

    for name in sorted(ways):
        follow(name)
    return circles


def closed(root: pathlib.Path) -> list[str]:
    """Listeners reach no closed room of `bridge`, directly or through an open one; the chain is named."""
    ways: dict[str, set[str]] = {}
    for each in imports(root):
        if not each.typing or each.source.split(".")[0] == "listeners":
            ways.setdefault(each.source, set()).add(each.target)
    bad = []
    for start in sorted(name for name in files(root) if name.split(".")[0] == "listeners"):
        chains = [[start]]
        seen = {start}
        while chains:
            chain = chains.pop(0)
            for target in sorted(ways.get(chain[-1], set()) - seen):
                seen.add(target)
                parts = target.split(".")
                if parts[0] == "queuebell" or (parts[0] == "bridge" and (len(parts) == 1 or parts[1] not in OPEN)):
                    bad.append(" -> ".join([*chain, target]))
                elif parts[0] in PACKAGES:
                    chains.append([*chain, target])
    return bad


def crowded(root: pathlib.Path) -> list[str]:
    entries = {
        package: [each.name for each in (root / package).iterdir() if each.name not in MARKERS] for package in PACKAGES
    }
    return [f"{package}/ has {len(names)}" for package, names in entries.items() if len(names) > ENTRIES_MAX]


def worldly(root: pathlib.Path) -> list[str]:
    """Pure rooms import no asyncio, time, random, socket or SDK, look at no clock, and know no room above them."""
    bad = []
    for each in imports(root):
        if not each.source.startswith(PURE):
            continue
        top = each.target.split(".")[0]
        if top in PACKAGES:
            if not each.target.startswith((*PURE, "bridge.observe.facts")):
                bad.append(f"{each.source} -> {each.target}")
        elif top not in PURE_MODULES and not each.target.startswith("urllib.parse."):
            bad.append(f"{each.source} -> {each.target}")
    for name, tree in modules(root).items():
        for node in ast.walk(tree) if name.startswith(PURE) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = ast.unparse(node.func.value)
                if node.func.attr in CLOCKS and owner.split(".")[0] in {"datetime", "time", "date"}:
                    bad.append(f"{name} calls {owner}.{node.func.attr}")
    return bad


def heavy(root: pathlib.Path) -> list[str]:
    """`import queuebell` and its two packages load no SDK and no web server."""
    code = (
        "import sys; import queuebell.bridge, queuebell.listeners, queuebell;"
        "print([m for m in ('aiohttp', 'prometheus_client', 'nats', 'paho') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment({"PYTHONPATH": str(root)}),
        cwd=root,  # `python -c` looks there first
        timeout=500,
        check=True,
    )
    loaded: list[str] = ast.literal_eval(done.stdout)
    return loaded


EXTRAS = (
    "jwt", "grpc", "google.protobuf", "redis", "asyncpg", "aiobotocore", "azure", "django", "taskiq", "celery",
    "dramatiq", "kombu", "sqlalchemy",
)  # fmt: skip


def test_a_bridge_starts_without_any_extra() -> None:
    """What `serve`, `listen`, `check` and `key` load before they know the settings needs no optional library."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r}));"
        "import queuebell.assembly, queuebell.command.serve, queuebell.command.listen, queuebell.command.check,"
        "queuebell.command.key, queuebell.bridge.http.api.app, queuebell.bridge.service.channels.brokered, "
        "queuebell.bridge.triggers.attachment"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(), cwd=ROOT, timeout=500, check=True)


CHECKS: list[Callable[[pathlib.Path], list[str]]] = [unplanned, upward, circular, closed, crowded, worldly, heavy]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_rule_holds(check: Callable[[pathlib.Path], list[str]]) -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize(
    ("check", "file", "line", "chain"),
    [
        (unplanned, "bridge/service/x.py", "from bridge.http import y", "bridge.service.x -> bridge.http"),
        (upward, "bridge/contract/x.py", "def f(): import bridge.core.x", "bridge.contract.x -> bridge.core.x"),
        (
            circular,
            "bridge/core/y.py",
            "if TYPE_CHECKING:\n    from bridge.core import x",
            "bridge.core.x -> bridge.core.y -> bridge.core.x",
        ),
        (
            closed,
            "bridge/producer/x.py",
            "def f(): from bridge.service.x import Bridge",
            "listeners.listener -> bridge.producer.x -> bridge.service.x",
        ),
        (worldly, "bridge/core/x.py", "import asyncio", "bridge.core.x -> asyncio"),
        (heavy, "bridge/__init__.py", "import aiohttp", "aiohttp"),
        (crowded, "bridge/thirteenth.py", "", "bridge/ has 13"),
    ],
)
def test_each_check_can_fail(
    check: Callable[[pathlib.Path], list[str]], file: str, line: str, chain: str, tmp_path: pathlib.Path
) -> None:
    """A planted import is found and its chain named; without it the same tree passes."""
    tree = {
        "bridge/__init__.py": "",
        "bridge/brokers/x.py": "",
        "bridge/contract/x.py": "",
        "bridge/core/x.py": "from bridge.contract import x\nfrom bridge.core import y",
        "bridge/core/y.py": "",
        "bridge/http/__init__.py": "",
        "bridge/queues/__init__.py": "",
        "bridge/producer/x.py": "",
        "bridge/service/x.py": "from bridge.core import x",
        "listeners/__init__.py": "",
        "listeners/wake/x.py": "",
        "listeners/listener.py": "from bridge.producer import x",
        "queuebell/__init__.py": "",
        **({f"bridge/y{number}.py": "" for number in range(5)} if check is crowded else {}),
    }
    for name, text in tree.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    for name in ("bridge", "listeners"):
        (tmp_path / "queuebell" / name).symlink_to(f"../{name}")
    assert not any(chain in found for found in check(tmp_path))
    with (tmp_path / file).open("a") as end:
        end.write(line + "\n")
    assert any(chain in found for found in check(tmp_path))
