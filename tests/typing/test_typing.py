"""mypy, as strict as pyproject.toml makes it, accepts the files here and refuses rejected.py line by line."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.support import PATIENCE

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REJECTED = HERE / "rejected.py"
MARK = re.compile(r"# error: (?P<codes>[\w-]+(, [\w-]+)*)$")


def mypy(*files: Path) -> set[tuple[str, int, str]]:
    """The errors in these files: file name, line, code."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--output=json", *map(str, files)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert run.returncode in {0, 1}, run.stderr
    findings = [json.loads(line) for line in run.stdout.splitlines()]
    return {(Path(f["file"]).name, f["line"], f["code"]) for f in findings if f["severity"] == "error"}


def test_good_files_are_accepted() -> None:
    assert mypy(*(file for file in HERE.glob("*.py") if file != REJECTED)) == set()


def test_marked_lines_and_no_others_are_refused() -> None:
    expected = {
        (REJECTED.name, number, code)
        for number, line in enumerate(REJECTED.read_text().splitlines(), start=1)
        if (mark := MARK.search(line))
        for code in mark["codes"].split(", ")
    }
    assert expected
    assert mypy(REJECTED) == expected
