"""The files of `deploy/`, read as their programs read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "mainspring@.service"
COMPOSE = DEPLOY / "compose.yaml"
VARIABLE = re.compile(r"\$\{(\w+)(?::\?[^}]*)?\}")


def read_unit(text: str) -> dict[str, dict[str, list[str]]]:
    """Return sections, their settings, and the values of each: it may be given several times."""
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = sections.setdefault(match[1], {})
        elif line and not line.startswith(("#", ";")):
            name, sign, value = line.partition("=")
            assert sign, f"neither a section nor a setting nor a comment: {line!r}"
            assert re.fullmatch(r"[A-Z]\w+", name), f"no name of a setting: {line!r}"
            section.setdefault(name, []).append(value)
    return sections


def read_dockerfile() -> list[tuple[str, str]]:
    """Return the instructions, and what each is given."""
    lines = [
        line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")
    ]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, value) for name, _, value in (line.partition(" ") for line in joined.splitlines())]


def read_passwords() -> dict[str, str]:
    """Return what `.env` says."""
    lines = (DEPLOY / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def read_compose() -> dict[str, Any]:
    """Return the compose file with the passwords of `.env` put in."""
    passwords = read_passwords()
    text = VARIABLE.sub(lambda match: passwords[match[1]], COMPOSE.read_text())
    return dict(YAML(typ="safe").load(text))
