"""ARCHITECTURE.md is short, and names only what exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASES = [ROOT, ROOT / "src" / "mainspring"]  # the document may say `timing/` for short

FENCED_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`([^`\n]+)`")
REPO_PATH = re.compile(
    r"""
    [\w.*-]+ (/[\w.*-]+)* /                                     # a folder: timing/
    | ([\w.*-]+/)* [\w.*-]+ \.(py|md|toml|typed|sql|json|html)  # a file: clock.py, docs/*.md
    | (src|tests|docs|examples|benchmarks|scripts) (/[\w.*-]+)+ # anything in a folder of ours
    | Makefile | LICENSE | \.ci/run
    """,
    re.VERBOSE,
)


def paths_in(document: str) -> Iterator[str]:
    """What stands in backticks, outside code blocks, and looks like a path of this repository."""
    for match in INLINE_CODE.finditer(FENCED_BLOCK.sub("", document)):
        if REPO_PATH.fullmatch(match[1]):
            yield match[1]


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "docs/internals.md"])
def test_every_path_in_the_document_exists(document: str) -> None:
    named = set(paths_in((ROOT / document).read_text()))
    missing = {path for path in named if not any(any(base.glob(path)) for base in BASES)}
    assert missing == set()


def test_paths_are_told_from_other_code() -> None:
    document = "`src/mainspring` `timing/` `clock.py` `docs/*.md` `queued/running` `nats://` `pool.post`"
    assert list(paths_in(document)) == ["src/mainspring", "timing/", "clock.py", "docs/*.md"]


WHERE_TO_CHANGE = re.compile(r"^\| (?P<what>.+) \| `(?P<path>[\w/]+\.py)` \| `(?P<name>\w+)` \|$", re.MULTILINE)
MOST_LINES = 200
FEWEST_QUESTIONS = 20


def questions() -> list[re.Match[str]]:
    """The rows of the table "where do I change"."""
    return list(WHERE_TO_CHANGE.finditer((ROOT / "ARCHITECTURE.md").read_text()))


def names_of(module: Path) -> set[str]:
    """What a module defines at its top level."""
    names = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


@pytest.mark.parametrize("row", questions(), ids=lambda row: row["what"])
def test_a_place_to_change_something_exists(row: re.Match[str]) -> None:
    assert row["name"] in names_of(ROOT / "src" / "mainspring" / row["path"])


def test_the_table_answers_the_questions_of_a_contributor() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where do I change")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| **")]
    assert len(rows) - 1 == len(questions()) >= FEWEST_QUESTIONS  # the heading is a row, too


def test_the_document_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= MOST_LINES
