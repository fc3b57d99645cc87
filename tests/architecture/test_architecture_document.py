"""ARCHITECTURE.md names only what exists."""

import re
from collections.abc import Iterator
from pathlib import Path

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


def test_every_path_in_the_document_exists() -> None:
    named = set(paths_in((ROOT / "ARCHITECTURE.md").read_text()))
    missing = {path for path in named if not any(any(base.glob(path)) for base in BASES)}
    assert missing == set()


def test_paths_are_told_from_other_code() -> None:
    document = "`src/mainspring` `timing/` `clock.py` `docs/*.md` `queued/running` `nats://` `pool.post`"
    assert list(paths_in(document)) == ["src/mainspring", "timing/", "clock.py", "docs/*.md"]
