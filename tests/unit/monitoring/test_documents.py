"""The page about monitoring lists exactly the metrics that are exported, and the alerts that there are."""

from __future__ import annotations

import re
from pathlib import Path

from mainspring.monitoring.metrics import METRICS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()


def test_the_page_lists_every_metric_with_its_kind_scope_and_labels() -> None:
    rows = re.findall(r"^\| `(mainspring_\w+)` \| (\w+) \| (\w+) \| ([^|]*?) ?\| \S", PAGE, re.MULTILINE)
    listed = {name: (kind, scope, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, scope, labels in rows}
    assert listed == {name: (metric.kind, metric.scope, metric.labels) for name, metric in METRICS.items()}


def test_the_page_lists_every_alert() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    listed = re.findall(r"^\| \[(Mainspring\w+)\]", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(set(re.findall(r"- alert: (\w+)", rules)))
