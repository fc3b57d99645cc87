"""The manual of the test kit: its tests pass as they stand."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The code of the document, as one module."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("manual")
    monkeypatch.setitem(sys.modules, "manual", module)
    code = "\n\n".join(PYTHON.findall(DOCUMENT.read_text()))
    exec(compile(code, str(DOCUMENT), "exec"), module.__dict__)
    yield module
    module.__dict__["app"].close()


def test_every_test_in_the_manual_passes_and_leaves_no_file(manual: ModuleType, tmp_path: Path) -> None:
    tests: list[Callable[[], None]] = [value for name, value in vars(manual).items() if name.startswith("test_")]
    assert len(tests) >= 6
    for test in tests:
        test()
    assert list(tmp_path.iterdir()) == []
