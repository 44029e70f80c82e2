"""docs/observe.md and the files it is about: they speak of the same alerts, and of metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any, Final

import pytest
import yaml

from tests.docs.reference import exported
from tests.support.processes import ROOT

OBSERVE: Final = ROOT / "deploy" / "observe"
PAGE: Final = (ROOT / "docs" / "observe.md").read_text("utf-8")
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((OBSERVE / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
PANELS: Final[list[dict[str, Any]]] = json.loads((OBSERVE / "grafana.json").read_text("utf-8"))["panels"]
EXPRESSIONS: Final = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{f"{panel['title']} {each['refId']}": each["expr"] for panel in PANELS for each in panel.get("targets", ())},
}


def test_each_alert_is_on_the_page_once() -> None:
    """With its severity, and no other is."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE)
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
    (command,) = re.findall(r"^(\{ printf .*; \}) \| kubectl apply -n queuebell -f -$", PAGE, re.MULTILINE)
    made = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=True).stdout
    document = yaml.safe_load(made)
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert document["spec"]["groups"][0]["rules"] == RULES
