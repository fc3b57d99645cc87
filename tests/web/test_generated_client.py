"""A client is generated from the OpenAPI document, and works with a real server."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from mainspring import Mainspring
from tests.programs import Program, program, read_line, run_python
from tests.support import PATIENCE

pytestmark = pytest.mark.long

SHOP = """
from mainspring import Mainspring

app = Mainspring("sqlite:///shop.db")


@app.job(name="shop.cancel_order", queue="orders")
def cancel_order(order_id: int) -> None: ...
"""
PROBLEM = "urn:mainspring:problem:"


def address_of(server: Program) -> str:
    """Return the address that a server prints."""
    while True:
        if found := re.search(r"http://127\.0\.0\.1:\d+", read_line(server)):
            return found[0]


def generate(document: bytes, folder: Path) -> None:
    """Generate the package `shop_client` in a folder. Any warning fails."""
    path, options = folder / "openapi.json", folder / "generator.json"
    path.write_bytes(document)
    options.write_text(json.dumps({"post_hooks": []}))  # it would format the code
    generator = ("-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning")
    files = ("--path", str(path), "--config", str(options), "--output-path", str(folder / "shop_client"))
    done = run_python(*generator, *files, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()


def test_a_generated_client_submits_reads_lists_cancels_and_schedules(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with Mainspring(f"sqlite:///{tmp_path}/shop.db") as app:
        token = app.tokens.create("other team", scopes=["admin"]).secret
    with program("-m", "mainspring", "serve", "shop:app", "--http", "127.0.0.1:0", folder=tmp_path) as server:
        address = address_of(server)
        asked = Request(f"{address}/api/v1/openapi.json", headers={"Authorization": f"Bearer {token}"})
        with urlopen(asked, timeout=PATIENCE) as answer:
            generate(answer.read(), tmp_path)
        client = Path(__file__).with_name("client_program.py")
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = run_python(str(client), address, token, folder=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "submitted": True,
        "repeated": True,
        "job": ["shop.cancel_order", "PENDING", 42, True],
        "batch": [2, 2],
        "listed": True,
        "found": True,
        "canceled": ["CANCELED", True],
        "problems": [
            [404, f"{PROBLEM}job-not-found"],
            [422, f"{PROBLEM}invalid-arguments"],
            [412, f"{PROBLEM}precondition-failed"],
        ],
        "parameter": "order_id",
        "paused": True,
        "stored": [201, True, True],
        "deleted": True,
    }
