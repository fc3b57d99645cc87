"""Every journey has a start: without one, the hour of the day at which a test runs decides what it sees."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALL = re.compile(r"\btime_travel\(([^`\n]*)")


def calls_without_start(source: str) -> Iterator[int]:
    """The lines of a module that call `time_travel` without `start=`."""
    if "time_travel" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "time_travel":
            yield from [] if any(keyword.arg == "start" for keyword in node.keywords) else [node.lineno]


def lines_without_start(text: str) -> Iterator[int]:
    """The lines of a document that call `time_travel` with arguments, but without `start=`."""
    for number, line in enumerate(text.splitlines(), 1):
        if any(arguments.strip(") ") and "start=" not in arguments for arguments in CALL.findall(line)):
            yield number


def places() -> Iterator[str]:
    for folder in ("tests", "examples", "deploy", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from (f"{path.relative_to(ROOT)}:{line}" for line in calls_without_start(path.read_text()))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield from (f"{path.relative_to(ROOT)}:{line}" for line in lines_without_start(path.read_text()))


def test_every_journey_in_tests_examples_and_documents_has_a_start() -> None:
    assert list(places()) == []


@pytest.mark.parametrize("call", ["time_travel(app)", "testing.time_travel(app, isolated=False)"])
def test_a_journey_without_a_start_is_recognised(call: str) -> None:
    assert list(calls_without_start(f"import testing\nwith {call} as travel:\n    pass\n")) == [2]
    assert list(lines_without_start(f"text\n    with {call} as travel:\n")) == [2]


def test_a_start_and_a_bare_name_are_fine() -> None:
    assert list(calls_without_start("with time_travel(app, start=NOON):\n    pass\n")) == []
    assert list(lines_without_start("use `time_travel()`, as in `time_travel(app, start=NOON)`\n")) == []
