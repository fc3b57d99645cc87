"""Tests wait for events or move a manual clock; they never sleep."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
SLEEPS = {"time.sleep", "asyncio.sleep"}


def sleeping_lines(source: str) -> Iterator[int]:
    """The lines that sleep for a positive constant, whatever name the function was imported under."""
    if "sleep" not in source:  # whatever it is called later, it is imported by its name
        return
    tree = ast.parse(source)
    full_names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full_names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full_names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            head, dot, tail = ast.unparse(node.func).partition(".")
            durations = [*node.args, *(keyword.value for keyword in node.keywords)][:1]
            if full_names.get(head, head) + dot + tail in SLEEPS and any(map(is_positive, durations)):
                yield node.lineno


def is_positive(node: ast.expr) -> bool:
    """Whether this expression is a number above zero, written out."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value > 0


def test_no_test_sleeps() -> None:
    sleepers = [
        f"{path.relative_to(TESTS.parent)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in sleeping_lines(path.read_text())
    ]
    assert sleepers == []


def test_sleeping_is_recognised_under_any_name() -> None:
    source = """\
import asyncio
import time as t
from time import sleep as nap
t.sleep(1)
nap(0.5)
asyncio.sleep(delay=2)
asyncio.sleep(0)
pool.sleep(1)
"""
    assert sorted(sleeping_lines(source)) == [4, 5, 6]
