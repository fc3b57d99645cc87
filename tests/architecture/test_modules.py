"""Rules that every module under src/ keeps."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mainspring"


def imported_packages(module: Path) -> set[str]:
    """The top-level packages that a module imports."""
    packages = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            packages.add((node.module or "").partition(".")[0])
    return packages


@pytest.mark.parametrize("folder", ["runners", "timing"])
def test_the_core_imports_only_the_standard_library(folder: str) -> None:
    imported = set().union(*map(imported_packages, (PACKAGE / folder).rglob("*.py")))
    assert imported - sys.stdlib_module_names - {"mainspring"} == set()
