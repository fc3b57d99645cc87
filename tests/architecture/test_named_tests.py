"""Documents that say which test shows a statement name tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@cache
def functions_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def missing_from(text: str) -> list[str]:
    """Return the tests that a text names and that do not exist."""
    missing = []
    for path, test in NAMED.findall(text):
        module = ROOT / path
        if not module.is_file() or (test and test not in functions_in(module)):
            missing.append(f"{path}::{test}" if test else path)
    return missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_named_test_exists(document: Path) -> None:
    assert missing_from(document.read_text()) == []


def test_a_missing_test_or_module_is_found() -> None:
    here = "tests/architecture/test_named_tests.py"
    text = f"`{here}::{test_every_named_test_exists.__name__}` `{here}::test_none` `tests/none.py`"
    assert missing_from(text) == [f"{here}::test_none", "tests/none.py"]
