"""The suite for engines is whole: none of its parts hides what another one says."""

from collections import Counter

from mainspring.testing import EngineConformance
from mainspring.testing.engine_base import EngineSuite


def test_no_part_of_the_suite_hides_a_test_of_another() -> None:
    parts = [part for part in EngineConformance.__bases__ if part is not EngineSuite]
    names = Counter(name for part in parts for name in vars(part) if not name.startswith("__"))
    assert len(parts) > 1
    assert [name for name, uses in names.items() if uses > 1] == []
