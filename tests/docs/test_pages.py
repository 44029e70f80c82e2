"""What code and pages cite is there, and pages say what the code does: rules, stores, metrics, settings, units."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

import queuebell
from queuebell.bridge.contract.settings import parse_toml
from queuebell.bridge.keda import scaled_object as rules
from queuebell.bridge.queues import STORES, open_store
from queuebell.bridge.queues.base import Capabilities
from queuebell.command.listen_settings import ListenSettings
from queuebell.listeners.scaling.actuators.systemd import SystemdActuator
from queuebell.listeners.scaling.processes import Limits
from queuebell.listeners.work.starter import SYSTEMD, VARIABLE
from tests.docs.reference import FOLDER, PAGES, exported, of_package
from tests.docs.site import outside
from tests.docs.snippets import snippets
from tests.support.processes import ROOT, placed

DOCS = ROOT / "docs"
ROW = re.compile(r"\bS(\d{1,2})\b")


def cited() -> dict[str, str]:
    rooms = ("bridge", "listeners", "queuebell", "tests", "bench")
    paths = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def test_each_row_of_bad_input_is_described() -> None:
    """S1 to S3 are rules of the protocol; every other one that is cited is a row of the page."""
    rows = {
        int(number)
        for number in re.findall(r"^\| S(\d+) \|", (DOCS / "explanation" / "verification.md").read_text(), re.MULTILINE)
    }
    unknown = {
        f"{name}: S{number}"
        for name, text in cited().items()
        for number in map(int, ROW.findall(text))
        if number > 3 and number not in rows
    }
    assert rows and not unknown


PLACES = ("tests/bridge", "tests/conformance", "tests/services")


def test_each_row_of_bad_input_has_a_number_of_its_own_and_a_test() -> None:
    rows = re.findall(r"^\| (S\d+) \|", (DOCS / "explanation" / "verification.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    tests = "\n".join(text for name, text in cited().items() if name.startswith(PLACES))
    shown = {f"S{number}" for number in re.findall(r"(?:\bS|_s)(\d+)(?![0-9a-z])", tests)}
    assert len(rows) > 30 and set(rows) - shown == set()


_code = re.compile(r"`([^`\n]+)`")
_path = re.compile(r"(?:bridge|listeners|queuebell|tests|docs)/[\w./-]*")


@pytest.mark.parametrize("page", ["docs/explanation/architecture.md", "CONTRIBUTING.md"])
def test_every_place_that_a_developer_is_sent_to_exists(page: str) -> None:
    """A function as ``path: Name.method``, a file or folder by its path from the root."""
    named = _code.findall((ROOT / page).read_text(encoding="utf-8"))
    functions = [text for text in named if ".py: " in text]
    paths = [text for text in named if _path.fullmatch(text)]
    assert len(paths) > 10
    assert [text for text in functions if missing(text)] == []
    assert [text for text in paths if not placed(text).exists()] == []


PAGE_KEDA = ROOT / "docs" / "how-to" / "kubernetes.md"


def scaled_objects() -> Iterator[tuple[str, dict[str, Any]]]:
    texts = [(str(each.page), each.text) for each in snippets() if each.language == "yaml"]
    texts += [(str(file), file.read_text(encoding="utf-8")) for file in sorted((ROOT / "deploy").rglob("*.y*ml"))]
    for where, text in texts:
        if "keda.sh/" in text:
            for document in yaml.safe_load_all(text):
                if document and document.get("kind") in ("ScaledObject", "ScaledJob"):
                    yield where, document


def test_every_trigger_that_is_shown_is_taken() -> None:
    """Its keys are known, and its values are texts within their range."""
    seen = 0
    for where, found in scaled_objects():
        for trigger in found["spec"]["triggers"]:
            if trigger["type"] in ("external", "external-push"):
                metadata = trigger["metadata"]
                assert all(isinstance(value, str) for value in metadata.values()), where
                assert rules.asked(metadata, {metadata.get("store", "")}).queue, where
                seen += 1
    assert seen


@pytest.mark.parametrize("key", rules.KEYS)
def test_each_key_is_in_the_table(key: str) -> None:
    (row,) = re.findall(rf"^\| `{key}` \|.*$", PAGE_KEDA.read_text(encoding="utf-8"), re.MULTILINE)
    for number in {
        "perProcess": (rules.PER_PROCESS, rules.PER_PROCESS_MAX),
        "startSeconds": (rules.START_S, rules.START_S_MAX),
    }.get(key, ()):
        assert str(number) in row


OBSERVE: Final = ROOT / "deploy" / "observe"
PAGE_OBSERVE: Final = (ROOT / "docs" / "how-to" / "watch.md").read_text("utf-8")
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((OBSERVE / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
PANELS: Final[list[dict[str, Any]]] = json.loads((OBSERVE / "grafana.json").read_text("utf-8"))["panels"]
EXPRESSIONS: Final = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{f"{panel['title']} {each['refId']}": each["expr"] for panel in PANELS for each in panel.get("targets", ())},
}


def test_each_alert_is_on_the_page_once() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE_OBSERVE, re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]
    assert {severity for _, severity in rows} == {"critical", "warning"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_where_there_is_more_to_read_and_has_a_test(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["docs"].partition("#")
    assert f"## {anchor.replace('-', ' ').capitalize()}\n" in (ROOT / page).read_text("utf-8")
    assert f'alertname="{rule["alert"]}"' in (OBSERVE / "alerts_test.yml").read_text("utf-8")


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_is_of_metrics_and_labels_that_there_are(name: str) -> None:
    """Each of a bridge, as the code registers them; what Prometheus adds is `up`, `job`, `instance` and `le`."""
    expression = EXPRESSIONS[name]
    known = {
        name + suffix: {*labels, "job", "instance", "le"}
        for name, labels, kind, _ in exported()
        for suffix in (("_bucket",) if kind == "histogram" else ("",))
    }
    used = set(re.findall(r"queuebell_\w+", expression))
    assert used <= set(known)
    labels = {label for metric in used for label in known[metric]}
    said = re.findall(r"(?:by|on) \(([^)]*)\)", expression) + re.findall(r"(\w+)=~?\"", expression)
    assert {label.strip() for each in said for label in each.split(",")} <= labels


def test_the_rules_for_prometheus_operator_are_the_same() -> None:
    """The command of the page makes one document of them."""
    (command,) = re.findall(r"^(\{ printf .*; \}) \| kubectl apply -n queuebell -f -$", PAGE_OBSERVE, re.MULTILINE)
    made = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=True).stdout
    document = yaml.safe_load(made)
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert document["spec"]["groups"][0]["rules"] == RULES


def test_the_configuration_shows_the_defaults() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    shown = re.search(r"```toml\n(\[listener\]\nmax_attempts.*?)```", page, re.DOTALL)
    assert shown is not None
    table = parse_toml(shown[1], "settings.md")["listener"]
    assert table.pop("retry_transient") == ["attempts=20", "ceiling=900"]
    assert table == {name: getattr(ListenSettings(), name) for name in table}
    assert len(table) == 5


PAGE_SCALING_PAGE = ROOT / "docs" / "how-to" / "scaling.md"
UNITS = ROOT / "deploy" / "systemd"
WORKER_GRACE_S = 20
"""What a worker takes to end in order, unless it is told otherwise."""


def settings(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text("utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def blocks(language: str) -> list[str]:
    return [block.text for block in snippets() if block.page == PAGE_SCALING_PAGE and block.language == language]


def test_the_template_is_what_the_scaler_asks_for() -> None:
    """It tells systemd how it stands, is up within the time that it has, and ends in its own."""
    worker = settings("queuebell-worker@.service")
    assert worker["Type"] == ["notify"]
    assert f"{VARIABLE}={SYSTEMD}" in worker["Environment"]
    assert float(worker["TimeoutStartSec"][0]) == Limits().start_timeout_s
    assert float(worker["TimeoutStopSec"][0]) > WORKER_GRACE_S
    (tables,) = (parse_toml(text, "page") for text in blocks("toml") if 'actuator = "systemd"' in text)
    (table,) = tables["scale"]
    assert str(SystemdActuator(table["unit"])) == "queuebell-worker@.service"


def test_polkit_lets_the_scaler_do_this_and_no_more() -> None:
    """Its units by their whole names, to start and to stop; of one user, by one action."""
    rule = (UNITS / "50-queuebell-scaler.rules").read_text("utf-8")
    units, verbs = (re.compile(text) for text in re.findall(r"/(\^.*?\$)/\.test", rule))
    assert units.search("queuebell-worker@1.service")
    for other in ("queuebell.service", "ssh.service", "queuebell-worker@1.service.d", "queuebell-worker@a.service"):
        assert not units.search(other)
    assert [verb for verb in ("start", "stop", "restart", "reload", "kill") if verbs.search(verb)] == ["start", "stop"]
    assert 'action.id == "org.freedesktop.systemd1.manage-units"' in rule
    assert f'subject.user == "{settings("queuebell-scaler.service")["User"][0]}"' in rule


def test_what_a_page_fetches_from_elsewhere_is_found(tmp_path: Path) -> None:
    """Scripts, styles, fonts and pictures; links that a reader may follow are none."""
    (tmp_path / "well.html").write_text('<a href="https://a.example">out</a><script src="assets/a.js"></script>')
    (tmp_path / "a.html").write_text('<link rel="stylesheet" href="https://c.example/a.css"><img src="//c.example/b">')
    (tmp_path / "c.css").write_text("@font-face { src: url(https://cdn.example/d.woff2) } a { background: url(e.png) }")
    assert outside(tmp_path) == {
        "a.html": ["https://c.example/a.css", "//c.example/b"],
        "c.css": ["https://cdn.example/d.woff2"],
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_is_made_from_the_code_is_up_to_date(page: str) -> None:
    assert (FOLDER / page).read_text(encoding="utf-8") == PAGES[page](), "python -m tests.docs.reference"


def test_the_reference_has_every_public_name_once() -> None:
    page = (FOLDER / "python.md").read_text(encoding="utf-8").splitlines()
    for name in set(dir(queuebell)) - {"__version__", "Outcome", "PULL_ONLY"}:
        assert page.count(f"::: {of_package(name)}") == 1, name


PROTOCOL = ROOT / "docs" / "reference" / "protocol.md"
PROTOCOL_RULES = [
    *(f"P{number}" for number in range(1, 6)),
    *(f"B{number}" for number in range(1, 18)),
    *(f"O{number}" for number in range(8)),
    *(f"L{number}" for number in range(1, 13)),
    *(f"S{number}" for number in range(1, 4)),
    *(f"C{number}" for number in range(1, 9)),
    "C10",
    "C11",
    *(f"Z{number}" for number in range(1, 8)),
]
_rule = re.compile(r"^- \*\*([PBOLSCZ]\d+)\*\* (.*?)(?=^- \*\*|^## |\Z)", re.MULTILINE | re.DOTALL)
REGISTER: dict[str, dict[str, list[str]]] = tomllib.loads(
    (ROOT / "tests" / "docs" / "protocol_rules.toml").read_text(encoding="utf-8")
)
_function = re.compile(r"^([\w/]+\.py): ([\w.]+)$")
_test = re.compile(r"^([\w/]+\.py)::(test_\w+)$")


@cache
def names(path: Path) -> frozenset[str]:
    """Return the functions, classes and methods of a file, dotted; read, not imported."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{prefix}{node.name}.")

    walk(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(found)


def missing(reference: str) -> bool:
    """Say whether a reference to a function (``path: Name.method``) or a test (``path::test``) leads nowhere."""
    found = _function.match(reference) or _test.match(reference)
    if found is None:
        return True
    path = placed(found[1])
    return not path.is_file() or found[2] not in {
        name if ": " in reference else name.split(".")[-1] for name in names(path)
    }


def test_every_rule_has_its_place() -> None:
    """P1 to P5, B1 to B17, O0 to O7, L1 to L12, S1 to S3, C1 to C8, C10, C11, Z1 to Z7, in order and each once."""
    assert [name for name, _ in _rule.findall(PROTOCOL.read_text(encoding="utf-8"))] == PROTOCOL_RULES
    assert list(REGISTER) == PROTOCOL_RULES


@pytest.mark.parametrize("rule", PROTOCOL_RULES)
def test_what_keeps_and_what_attacks_a_rule_exists(rule: str) -> None:
    keeps, attacks = REGISTER[rule]["kept_by"], REGISTER[rule]["attacked_by"]
    assert keeps and all(reference.startswith(("bridge/", "listeners/")) for reference in keeps)
    assert attacks and all(_test.match(reference) for reference in attacks)
    assert [reference for reference in keeps + attacks if missing(reference)] == []


def test_every_other_reference_leads_somewhere() -> None:
    page = PROTOCOL.read_text(encoding="utf-8")
    references = [text for text in _code.findall(page) if ".py:" in text]
    assert len(references) > 5
    assert [reference for reference in references if missing(reference)] == []


STORE_PAGES = ROOT / "docs" / "reference" / "stores"
ADDRESSES = {
    "embedded": "http://127.0.0.1:8470",
    "PostgreSQL": "postgres://user@host/database",
    "PGMQ": "pgmq://user@host/database",
    "Azure": "azure:",
    "SQS": "sqs://eu-west-1",
    "JetStream": "nats://host:4222",
    "Redis": "redis://host:6379",
}
MEANING = {
    "complete_receive": "an empty receive proves that nothing is due",
    "exact_depth": "exact depth",
    "zero_depth": "an approximate depth of 0 proves that the queue is empty",
    "next_visible": "a receive returns when the next message is due",
    "delayed_put": "delayed puts",
    "update_body": "an extension may change the body",
    "peek": "peek",
    "time_to_live": "messages can expire",
    "metadata": "metadata of a queue",
    "pause": "pause and resume",
    "batch_max": "most messages of a receive",
    "body_bytes_max": "most bytes of a body",
    "resolution_ms": "leases and delays are rounded up to, ms",
    "receive_s": "a receive may wait, s",
    "short_batch_ends": "a short batch proves that nothing is left",
    "ordered": "longest visible first",
    "fenced": "only the newest receipt settles",
    "put_receipts": "a put's receipt can delete its message",
    "atomic_put": "several messages are put together or not at all",
    "delay_ms_max": "longest delay of a put, s",
    "own_leases": "each lease lasts as long as requested",
    "put_once": "puts under a key (`put_once`)",
    "oldest_age": "age of the oldest message",
    "counts_leased": "counts leased and delayed messages separately",
    "joins_transaction": "a put can join your transaction",
    "uncounted_release": "a release can undo the attempt",
    "visibility_s_max": "longest lease, s",
    "headers": "headers",
}


def said(field: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    assert isinstance(value, int | float)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value // 1000 if field == 'delay_ms_max' else value:,}"


def table() -> str:
    each = [open_store(address).capabilities for address in ADDRESSES.values()]
    lines = ["| | " + " | ".join(ADDRESSES) + " |", "|---|" + "---|" * len(ADDRESSES)]
    for field in msgspec.structs.fields(Capabilities):
        assert {type(getattr(one, field.name)) for one in each} == {type(field.default)}, field.name
        values = [said(field.name, getattr(one, field.name)) for one in each]
        lines.append(f"| {MEANING[field.name]} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def test_the_table_is_what_the_stores_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every capability of every store stands in it, as the code has it."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    page = (STORE_PAGES / "README.md").read_text("utf-8")
    assert table() in page, "docs/reference/stores/README.md: the table of capabilities is to be\n\n" + table()


def test_every_scheme_has_a_page_that_says_its_cost_and_its_bound() -> None:
    """Each page is linked, names its schemes, and answers three questions."""
    front = (STORE_PAGES / "README.md").read_text("utf-8")
    linked = re.findall(r"^\| \[[^\]]+\]\((\w+\.md)\)[^|]*\|", front, re.MULTILINE)
    assert sorted(linked) == sorted(path.name for path in STORE_PAGES.glob("*.md") if path.name != "README.md")
    pages = {name: (STORE_PAGES / name).read_text("utf-8") for name in linked}
    for name, page in pages.items():
        for heading in (r"[Ee]xact", r"What a quiet queue costs", r"[Bb]ound"):
            assert re.search(rf"^## .*{heading}", page, re.MULTILINE), f"{name}: no section about {heading}"
    for scheme in STORES.keys() - {"postgresql"}:
        assert any(re.search(rf"`{scheme}:", page) for page in pages.values()), f"{scheme}: stands on no page"
