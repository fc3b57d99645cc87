"""The style sheet of the dashboard: a merge that loses a brace leaves all rules after it without effect."""

from __future__ import annotations

import re
from pathlib import Path

from mainspring.web import dashboard

TEXT = (Path(dashboard.__file__).parent / "static" / "dashboard.css").read_text(encoding="utf-8")


def test_every_part_begins_outside_of_all_rules() -> None:
    parts = re.split(r"^(?=/\*)", TEXT, flags=re.MULTILINE)
    assert len(parts) > 5
    assert [part.splitlines()[0] for part in parts if part.count("{") != part.count("}")] == []
