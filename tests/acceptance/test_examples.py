"""Every example, and every piece of Python in the documents, runs as a user would run it and has no complaints."""

import os
import re
from pathlib import Path

import pytest

from mainspring import KeyRing
from tests.programs import run_python
from tests.support import PATIENCE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"web.md"}  # its blocks are files of several programs: see test_web_frameworks.py
OF_THE_READER = {  # files that readers of the documents have
    "shop.py": "from mainspring import Mainspring\n\napp = Mainspring('sqlite:///shop.db')\n",
    "settings.py": "SECRET_KEY = 'of a test'\n",
    "keys.toml": f'sign_with = "2026-11"\n\n[keys]\n2026-11 = "{KeyRing.generate()}"\n',
}
SETTINGS_OF_THE_READER = {
    "DJANGO_SETTINGS_MODULE": "settings",
    "SHOP_KEY": KeyRing.generate(),
    "SHOP_PUBLIC_KEY": KeyRing.public(KeyRing.generate("ed25519")),
}
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if PYTHON.search(path.read_text()) and path.name not in ELSEWHERE
]


def test_there_are_examples_and_documents_with_code() -> None:
    assert EXAMPLES
    assert ROOT / "README.md" in DOCUMENTS


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example.relative_to(FOLDER)))
def test_example_runs(example: Path, tmp_path: Path) -> None:
    run_in(tmp_path, str(example))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_the_code_of_a_document_runs_from_its_first_block_to_its_last(document: Path, tmp_path: Path) -> None:
    blocks = PYTHON.findall(document.read_text())
    module = f"{document.stem.lower().replace('-', '_')}_document"  # never the name of a package
    (tmp_path / f"{module}.py").write_text("\n\n".join(blocks))
    for name, text in OF_THE_READER.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    run_in(tmp_path, "-c", f"import {module}")  # not as a program: what starts a worker for good is left alone


def run_in(folder: Path, *command: str) -> None:
    environment = os.environ | SETTINGS_OF_THE_READER
    run = run_python("-W", "error", *command, folder=folder, environment=environment, patience=2 * PATIENCE)
    assert (run.returncode, run.stderr) == (0, "")
