"""What code and tests cite can be looked up in this repository."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import queuebell
from bridge.contract.settings import parse_toml
from bridge.core.keda import asked as rules
from listeners.core.processes import Limits
from listeners.scaling.actuators.systemd import SystemdActuator
from listeners.work.starter import SYSTEMD, VARIABLE
from queuebell.command.listen_settings import ListenSettings
from tests.docs.reference import FOLDER, PAGES, exported, of_package
from tests.docs.site import outside
from tests.docs.snippets import snippets
from tests.docs.test_protocol import missing
from tests.support.processes import ROOT

DOCS = ROOT / "docs"
ROW = re.compile(r"\bS(\d{1,2})\b")
PAGE = re.compile(r"[\w./-]+\.md\b")


def cited() -> dict[str, str]:
    rooms = ("bridge", "listeners", "queuebell", "tests", "bench")
    paths = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def test_each_row_of_bad_input_is_described() -> None:
    """S1 to S3 are rules of the protocol; every other one that is cited is a row of the page."""
    rows = {int(number) for number in re.findall(r"^\| S(\d+) \|", (DOCS / "bad-input.md").read_text(), re.MULTILINE)}
    unknown = {
        f"{name}: S{number}"
        for name, text in cited().items()
        if name != "tests/docs/test_citations.py"
        for number in map(int, ROW.findall(text))
        if number > 3 and number not in rows
    }
    assert rows and not unknown


def test_each_row_of_bad_input_is_shown_by_a_test() -> None:
    """A row that no test names may say what it likes."""
    rows = re.findall(r"^\| (S\d+) \|", (DOCS / "bad-input.md").read_text(), re.MULTILINE)
    tests = "\n".join(text for name, text in cited().items() if name.startswith(("tests/bridge", "tests/services")))
    shown = {f"S{number}" for number in re.findall(r"(?:\bS|_s)(\d+)(?![0-9a-z])", tests)}
    assert len(rows) > 30 and set(rows) - shown == set()


@pytest.mark.parametrize("planted", ["docs/never-there.md", "interfaces.md"])
def test_each_page_that_is_named_is_there(planted: str) -> None:
    """By its path from the root, or by its name alone below `docs/`; a page that is not there would be found."""
    there = {path.name for path in (*DOCS.rglob("*.md"), *(ROOT / "bench").glob("*.md"))}

    def missing(text: str) -> set[str]:
        return {page for page in PAGE.findall(text) if not (ROOT / page).exists() and page not in there}

    assert missing(f"see {planted}") == {planted}
    found = {f"{name}: {page}" for name, text in cited().items() for page in missing(text)}
    assert {one for one in found if not one.startswith("tests/")} == set()


_code = re.compile(r"`([^`\n]+)`")
_path = re.compile(r"(?:bridge|listeners|queuebell|tests|docs)/[\w./-]*")


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_place_that_a_developer_is_sent_to_exists(page: str) -> None:
    """A function as ``path: Name.method``, a file or folder by its path from the root."""
    named = _code.findall((ROOT / page).read_text(encoding="utf-8"))
    functions = [text for text in named if ".py: " in text]
    paths = [text for text in named if _path.fullmatch(text)]
    assert len(paths) > 10
    assert [text for text in functions if missing(text)] == []
    assert [text for text in paths if not (ROOT / text).exists()] == []


PAGE_KEDA = ROOT / "docs" / "scaling.md"


def scaled_objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return all that stand anywhere, with where."""
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
    """With its default and its range, as the code has them."""
    (row,) = re.findall(rf"^\| `{key}` \|.*$", PAGE_KEDA.read_text(encoding="utf-8"), re.MULTILINE)
    for number in {
        "perProcess": (rules.PER_PROCESS, rules.PER_PROCESS_MAX),
        "startSeconds": (rules.START_S, rules.START_S_MAX),
    }.get(key, ()):
        assert str(number) in row


OBSERVE: Final = ROOT / "deploy" / "observe"
PAGE_OBSERVE: Final = (ROOT / "docs" / "observe.md").read_text("utf-8")
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((OBSERVE / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
PANELS: Final[list[dict[str, Any]]] = json.loads((OBSERVE / "grafana.json").read_text("utf-8"))["panels"]
EXPRESSIONS: Final = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{f"{panel['title']} {each['refId']}": each["expr"] for panel in PANELS for each in panel.get("targets", ())},
}


def test_each_alert_is_on_the_page_once() -> None:
    """With its severity, and no other is."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE_OBSERVE, re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]
    assert {severity for _, severity in rows} == {"critical", "warning"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_tells_who_is_awake_what_there_is_to_know(rule: dict[str, Any]) -> None:
    """Which queue or bridge it is about, that nothing is lost, and where there is more to read; and it has a test."""
    told = rule["annotations"]
    assert set(told) == {"summary", "description", "docs"}
    subject = re.search(r"\$labels\.(queue|instance|job)", told["summary"])
    assert subject is not None
    if "by (" in rule["expr"]:
        assert all(subject[1] in by for by in re.findall(r"by \(([^)]*)\)", rule["expr"]))
    assert re.search(r"\b(safe|lost|late|kept|wait in their store)\b", told["description"])
    page, _, anchor = told["docs"].partition("#")
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


def test_the_dashboard_can_be_imported() -> None:
    """Panels have ids of their own, a title, a unit and words of what they show, and do not lie on each other."""
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) == len({panel["title"] for panel in PANELS})
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and all(x < 24 for x, _ in cells)
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"].endswith(".") and panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert [each["refId"] for each in panel["targets"]] == ["A", "B"][: len(panel["targets"])]
            assert all(each["legendFormat"] for each in panel["targets"])
    board = json.loads((OBSERVE / "grafana.json").read_text("utf-8"))
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "job", "queue"]
    assert "id" not in board, "one that is there is written over by whoever has that number"


def test_the_rules_for_prometheus_operator_are_the_same() -> None:
    """The command of the page makes one document of them."""
    (command,) = re.findall(r"^(\{ printf .*; \}) \| kubectl apply -n queuebell -f -$", PAGE_OBSERVE, re.MULTILINE)
    made = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=True).stdout
    document = yaml.safe_load(made)
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert document["spec"]["groups"][0]["rules"] == RULES


def test_the_configuration_shows_the_defaults() -> None:
    """But for transient failures, of which it says that there is none."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    shown = re.search(r"```toml\n(\[listener\]\nmax_attempts.*?)```", page, re.DOTALL)
    assert shown is not None
    table = parse_toml(shown[1], "configuration.md")["listener"]
    assert table.pop("retry_transient") == ["attempts=20", "ceiling=900"]
    assert table == {name: getattr(ListenSettings(), name) for name in table}
    assert len(table) == 5


PAGE_SCALING_PAGE = ROOT / "docs" / "scaling.md"
UNITS = ROOT / "deploy" / "systemd"
WORKER_GRACE_S = 20
"""What a worker takes to end in order, unless it is told otherwise."""


def settings(name: str) -> dict[str, list[str]]:
    """Return the settings of a unit, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text("utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in a language."""
    return [block.text for block in snippets() if block.page == PAGE_SCALING_PAGE and block.language == language]


def test_the_page_installs_what_is_there() -> None:
    """Every file that it names, to where the units look for it, and the user that they have."""
    (install,) = (text for text in blocks("sh") if "useradd" in text)
    for file in re.findall(r"deploy/systemd/\S+", install):
        assert (ROOT / file).exists(), file
    assert {file.name for file in UNITS.iterdir()} - {"queuebell.service"} == {
        word.rpartition("/")[2] for word in re.findall(r"deploy/systemd/\S+", install)
    }
    scaler, worker = settings("queuebell-scaler.service"), settings("queuebell-worker@.service")
    assert f" {scaler['User'][0]}\n" in install
    for each in (*scaler["LoadCredential"], *worker["LoadCredential"], *worker["EnvironmentFile"]):
        assert each.rpartition("/")[2] in install, each


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
    well = '<a href="https://example.com">out</a><script src="assets/a.js"></script><link rel="canonical" href="//x/">'
    (tmp_path / "well.html").write_text(well)
    assert outside(tmp_path) == {}
    (tmp_path / "a.html").write_text('<script src="https://cdn.example/a.js"></script><img src="//cdn.example/b.png">')
    (tmp_path / "b.html").write_text('<link rel="stylesheet" href="https://fonts.example/c.css">')
    (tmp_path / "c.css").write_text(
        "@font-face { src: url(https://fonts.example/d.woff2) } a { background: url(e.png) }"
    )
    assert outside(tmp_path) == {
        "a.html": ["https://cdn.example/a.js", "//cdn.example/b.png"],
        "b.html": ["https://fonts.example/c.css"],
        "c.css": ["https://fonts.example/d.woff2"],
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_is_made_from_the_code_is_up_to_date(page: str) -> None:
    """`python -m tests.docs.reference` writes it anew."""
    assert (FOLDER / page).read_text(encoding="utf-8") == PAGES[page](), "python -m tests.docs.reference"


def test_the_reference_has_every_public_name_once() -> None:
    """Each from where its docstring is found."""
    page = (FOLDER / "python.md").read_text(encoding="utf-8").splitlines()
    for name in set(dir(queuebell)) - {"__version__", "Outcome", "PULL_ONLY"}:
        assert page.count(f"::: {of_package(name)}") == 1, name
