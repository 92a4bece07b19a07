"""The dashboard and the alert rules ask for nothing that is not exported: every metric and every label is looked up in a registry."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client import CollectorRegistry

from pqrun.contrib.prometheus.depths import QueueGauges
from pqrun.contrib.prometheus.families import OUTCOMES, families_of
from pqrun.run.context import CancelReason
from pqrun.store.measuring import QueueDepth

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "grafana"
DOCS = FOLDER.parent

TARGET_LABELS = {"instance", "job", "le"}
"""What Prometheus adds to each target, and what a histogram has."""

METRIC = re.compile(r"\bpqrun_\w+")
SELECTOR = re.compile(r"\b(pqrun_\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")


def exported() -> dict[str, set[str]]:
    """Every sample that can be exported, with its labels; each with one child at least."""
    registry = CollectorRegistry()
    families = families_of(registry)
    pair = families.pair("q", "t")
    pair.claim_lost()
    pair.stopped("timeout")
    pair.deferred(is_new=True)
    families.errors.labels("fetch").inc()
    families.firings.labels("s", "fired").inc()
    assert isinstance(families.queues, QueueGauges)
    families.queues.show([QueueDepth("q", 1, 1, 1, 1.0)], 1e12)
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[tuple[str, str]]:
    """(where it stands, the expression) of every panel, variable and rule."""
    board = json.loads((FOLDER / "pqrun.json").read_text())
    found = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel["targets"]]
    found += [(v["name"], v["query"]["query"]) for v in board["templating"]["list"] if v["type"] == "query"]
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    return found + [(rule["alert"], rule["expr"]) for rule in rules]


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_what_is_asked_for_is_exported(where: str, expression: str) -> None:
    known = exported()
    names = METRIC.findall(expression)
    assert names, where
    assert set(names) <= known.keys(), where
    for name, matchers in SELECTOR.findall(expression):
        for label, value in MATCHER.findall(matchers):
            assert label in known[name], (where, name, label)
            assert set(value.split("|")) <= values_of(label) | {f"${label}"}, (where, name, value)
    labels = {label for name in names for label in known[name]} | TARGET_LABELS
    for grouping in GROUPING.findall(expression):
        assert {label.strip() for label in grouping.split(",")} <= labels, (where, grouping)
    for variable in re.findall(r"label_values\(\w+, (\w+)\)", expression):
        assert variable in labels


def values_of(label: str) -> set[str]:
    values: dict[str, set[str]] = {
        "outcome": set(OUTCOMES),
        "state": {"ready", "scheduled", "running"},
        "created": {"true", "false"},
    }
    return values.get(label, set())


def test_the_reasons_of_stops_are_few() -> None:
    assert set(get_args(CancelReason)) == {"timeout", "cancelled", "shutdown", "claim_lost"}


def test_legends_and_texts_name_labels_that_their_expressions_keep() -> None:
    board = json.loads((FOLDER / "pqrun.json").read_text())
    told: list[tuple[str, str]] = [
        (target["expr"], target["legendFormat"]) for panel in board["panels"] for target in panel["targets"]
    ]
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    told += [(rule["expr"], rule["annotations"]["summary"]) for rule in rules]
    for expression, text in told:
        used = set(re.findall(r"\{\{\s*(?:\$labels\.)?([a-z]\w*)\s*\}\}", text)) - {"$value"}
        kept = {label.strip() for grouping in GROUPING.findall(expression) for label in grouping.split(",")}
        if not kept and "sum(" not in expression:
            kept = TARGET_LABELS
        assert used <= kept, (expression, text)


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels: list[dict[str, Any]] = json.loads((FOLDER / "pqrun.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def test_the_page_of_metrics_lists_all_of_them_with_their_labels() -> None:
    page = (DOCS / "metrics.md").read_text()
    rows = re.findall(r"^\| `(pqrun_\w+)` \| ([^|]*?) ?\|", page, re.MULTILINE)
    listed = {name: set(labels.replace("`", "").split(", ")) - {""} for name, labels in rows}
    suffixes = re.compile(r"_(bucket|count|sum|created)$")
    there: dict[str, set[str]] = {}
    for name, labels in exported().items():
        if name.endswith("_created"):
            continue
        there.setdefault(suffixes.sub("", name) if "_seconds_" in name else name, set()).update(labels - {"le"})
    assert listed == there
