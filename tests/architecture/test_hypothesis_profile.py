"""One profile of Hypothesis holds for all tests; no test sets a deadline of its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

from hypothesis import settings

TESTS = Path(__file__).parents[1]
PROFILE = TESTS / "conftest.py"


def deadlines(source: str) -> Iterator[int]:
    """The lines that give `settings` a deadline, or load a profile."""
    if "hypothesis" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            is_setting = name.endswith("settings") and any(keyword.arg == "deadline" for keyword in node.keywords)
            if is_setting or name.endswith(("register_profile", "load_profile")):
                yield node.lineno


def test_only_the_profile_says_something_about_deadlines() -> None:
    places = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in deadlines(path.read_text())
        if path != PROFILE
    ]
    assert places == []


def test_a_deadline_of_its_own_is_recognised() -> None:
    source = """\
import hypothesis
@settings(deadline=None)
def test() -> None: ...
hypothesis.settings(max_examples=3, deadline=1)
settings.load_profile("other")
settings(max_examples=3)
"""
    assert sorted(deadlines(source)) == [2, 4, 5]


def test_examples_have_no_deadline_and_failures_can_be_repeated() -> None:
    assert (settings().deadline, settings().print_blob) == (None, True)
