"""The checklist for production names commands and checks of the doctor that exist.

`test_named_tests.py` checks the tests that it names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from mainspring.cli.commands import load
from mainspring.cli.main import commands

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"^\| (\d+) \| .+? \| .+? \| `mainspring ([^`]+)`(?: \((.+?)\))? \| `([^`:]+)::(\w+)` \|$", re.MULTILINE
)
ITEMS = 22


@dataclass(frozen=True)
class Item:
    """A row of the checklist."""

    number: int
    command: str
    checks: tuple[str, ...]
    """The names of the doctor's checks."""
    path: str
    test: str


def read_items() -> list[Item]:
    text = (ROOT / "docs" / "checklist.md").read_text()
    return [
        Item(int(number), command, tuple(re.findall(r"`([^`]+)`", checks or "")), path, test)
        for number, command, checks, path, test in ROW.findall(text)
    ]


ALL = read_items()


def names_of_checks() -> set[str]:
    """Return the names of all checks of the doctor, as its code gives them."""
    sources = [path.read_text() for path in (ROOT / "src" / "mainspring" / "doctor").glob("*.py")]
    return set(re.findall(r'Check\("([a-z-]+)"', "\n".join(sources)))


def test_it_has_all_items() -> None:
    assert [item.number for item in ALL] == list(range(1, ITEMS + 1))


@pytest.mark.parametrize("item", ALL, ids=lambda item: str(item.number))
def test_the_command_of_an_item_exists(item: Item) -> None:
    first, *rest = item.command.split()
    assert first in commands.commands, f"there is no command `mainspring {item.command}`"
    command = load(first)
    for word in rest:
        below = getattr(command, "commands", {})
        assert word in below, f"there is no command `mainspring {item.command}`"
        command = below[word]
    assert set(item.checks) <= names_of_checks()
