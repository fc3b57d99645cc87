"""The alerts fire when they should and not otherwise, name metrics that there are, and link to the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mainspring.monitoring.metrics import METRICS
from scripts.fetch_prometheus import PrometheusTools
from tests.deploy.files import DEPLOY, ROOT
from tests.support import PATIENCE

pytestmark = pytest.mark.long

FOLDER = DEPLOY / "prometheus"
SUFFIXES = re.compile(r"_(bucket|count|sum)$")


def read_yaml(name: str) -> dict[str, Any]:
    return dict(YAML(typ="safe").load((FOLDER / name).read_text()))


def read_rules() -> list[dict[str, Any]]:
    return [rule for group in read_yaml("alerts.yml")["groups"] for rule in group["rules"]]


def read_alerts() -> list[dict[str, Any]]:
    return [rule for rule in read_rules() if "alert" in rule]


def promtool(tools: PrometheusTools, *arguments: str, folder: Path = FOLDER) -> None:
    """Run promtool; fail with its output unless it has nothing to say against the files."""
    done = subprocess.run(
        [tools.promtool, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,  # the unit tests evaluate hours of rules: seconds of processor time
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules(prometheus_tools: PrometheusTools) -> None:
    promtool(prometheus_tools, "check", "rules", "alerts.yml")


def test_the_alerts_fire_when_they_should_and_not_otherwise(prometheus_tools: PrometheusTools) -> None:
    promtool(prometheus_tools, "test", "rules", "alerts_test.yml")


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    cases = read_yaml("alerts_test.yml")["tests"]
    checks = [check for case in cases for check in case.get("alert_rule_test", [])]
    firing = {
        (check["alertname"], alert["exp_labels"]["severity"]) for check in checks for alert in check["exp_alerts"]
    }
    assert firing == {(alert["alert"], alert["labels"]["severity"]) for alert in read_alerts()}


def test_every_metric_of_the_unit_tests_is_exported() -> None:
    series = [text["series"] for case in read_yaml("alerts_test.yml")["tests"] for text in case["input_series"]]
    for text in series:
        name, _, labels = text.partition("{")
        metric = METRICS[SUFFIXES.sub("", name)]
        given = set(re.findall(r"(\w+)=", labels)) - {"job", "instance", "le"}
        assert given <= set(metric.labels), f"{text}: {metric.name} has the labels {metric.labels}"


def test_every_metric_of_the_rules_is_exported_with_these_labels() -> None:
    for rule in read_rules():
        for name, selector in re.findall(r"(?<![\w:])(mainspring_\w+)(?:\{([^}]*)\})?", rule["expr"]):
            metric = METRICS[SUFFIXES.sub("", name)]
            assert set(re.findall(r"(\w+)=", selector)) <= {*metric.labels, "le"}, f"{name}{{{selector}}}"
        for grouping in re.findall(r"by \(([^)]*)\)", rule["expr"]):
            assert "job" in grouping, f"{rule['expr']} adds up different stores"


def test_every_alert_says_what_it_is_about_and_has_an_entry_in_the_runbook() -> None:
    runbook = (ROOT / "docs" / "operations.md").read_text()
    for alert in read_alerts():
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        name = alert["alert"]
        assert alert["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
        entry = re.search(rf"^### {name}\n(.*?)(?=^#)", runbook, re.MULTILINE | re.DOTALL)
        assert entry, f"docs/operations.md has no entry '### {name}'"
        for part in ("**Meaning.**", "**First look.**", "**Causes and remedies.**"):
            assert part in entry[1], f"the entry of {name} has no part {part}"
        assert "mainspring " in entry[1], f"the entry of {name} names no command"


def test_the_runbook_has_entries_of_existing_alerts_only() -> None:
    entries = set(
        re.findall(r"^### (Mainspring\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    )
    assert entries == {alert["alert"] for alert in read_alerts()}


def test_prometheus_accepts_the_example_configuration(prometheus_tools: PrometheusTools, tmp_path: Path) -> None:
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "mainspring.token").write_text("secret")
    promtool(prometheus_tools, "check", "config", "prometheus.yml", folder=tmp_path)
