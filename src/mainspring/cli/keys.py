"""`mainspring keys`: makes and lists the keys with which jobs are signed. Keys are in a file, not in the store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, get_args

import click

from mainspring.cli.commands import Argument, CommandGroup
from mainspring.cli.options import json_option
from mainspring.cli.output import print_json, print_line, print_message, print_table
from mainspring.clock import SystemClock
from mainspring.security.keys import ED25519, Algorithm, KeyRing

DEFAULT_FILE = "keys.toml"
TABLE = "[keys]"
_TABLE_LINE = re.compile(r"^\[keys\][ \t]*(#.*)?$", re.MULTILINE)
_SIGN_WITH_LINE = re.compile(r"^sign_with\s*=.*$", re.MULTILINE)

keys = CommandGroup("keys", help="Make and list the keys with which jobs are signed.")

_file_option = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(DEFAULT_FILE),
    help="The TOML file with the keys.",
    metavar="PATH",
)


@keys.command("create")
@click.argument(
    "name", cls=Argument, required=False, metavar="NAME", help="The id of the key; by default the month, 2026-11."
)
@click.option(
    "--algorithm",
    type=click.Choice(get_args(Algorithm)),
    default="hmac-sha256",
    help="hmac-sha256: one secret signs and verifies. ed25519: public keys verify; it needs mainspring[signing].",
)
@click.option(
    "--sign",
    is_flag=True,
    help="Sign with this key from now on. The first key of a new file signs without this option.",
)
@_file_option
@json_option
def create_key(*, name: str | None, algorithm: Algorithm, sign: bool, path: Path, as_json: bool) -> None:
    """Make a key and add it to a key file, which only its owner can read.

    A new key does not sign at once: first give it to all workers, so that they can verify its jobs. Then sign
    with it: set sign_with in the file.

    Example: mainspring keys create 2026-12 --file keys.toml
    """
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else None
        ring = None if before is None else KeyRing.from_file(path)
        chosen = name or _next_name(ring)
        if ring is not None and chosen in ring:
            raise click.BadParameter(f"{path} has a key {chosen!r} already; give another NAME")
        key = KeyRing.generate(algorithm)
        public = KeyRing.public(key) if algorithm == ED25519 else None
        signs = sign or ring is None
        KeyRing({chosen: key})  # checks the name
        _write(path, _with_key(before, chosen, key, signs=signs))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if as_json:
        print_json({"key": chosen, "algorithm": algorithm, "file": str(path), "signs": signs, "public": public})
        return
    print_line(chosen)
    if public is not None:
        print_message(f"programs that only verify need only the public key: KeyRing({{{chosen!r}: {public!r}}})")
    if signs:
        print_message(f"{path} signs with {chosen!r}: Mainspring(..., signing=KeyRing.from_file({str(path)!r}))")
    else:
        print_message(
            f"{path} has the key {chosen!r} now, and still signs with "
            f"{'no key' if ring is None else ring.sign_with!r}; when all workers have the new key, set "
            f'sign_with = "{chosen}"'
        )


def _next_name(ring: KeyRing | None) -> str:
    today = SystemClock().now()
    month = f"{today:%Y-%m}"
    return month if ring is None or month not in ring else f"{today:%Y-%m-%d}"


def _with_key(before: str | None, name: str, key: str, *, signs: bool) -> str:
    """Return the text of a key file with one more key, which signs if `signs` is set.

    `before` is the text of the file; None if there is none. Raises `ValueError` if it has no line `[keys]`.
    """
    text = before or f"# Keys of signed jobs: keep this file secret.\nsign_with = ''\n\n{TABLE}\n"
    place = _TABLE_LINE.search(text)
    if place is None:
        raise ValueError(
            f"the key file has no line {TABLE}; write its keys below such a line, and repeat the command"
        )
    text = f'{text[: place.end()]}\n{name} = "{key}"{text[place.end() :]}'
    if signs:
        line = f'sign_with = "{name}"'
        text = _SIGN_WITH_LINE.sub(line, text, count=1) if _SIGN_WITH_LINE.search(text) else f"{line}\n{text}"
    return text


def _write(path: Path, text: str) -> None:
    """Write a key file, or replace it, in one step. Other users cannot read it at any time.

    Raises an error, and leaves the file as it was, if the text is no valid key file.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        KeyRing.from_file(draft)  # what was written can be read
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


@keys.command("list")
@_file_option
@json_option
def list_keys(*, path: Path, as_json: bool) -> None:
    """List the keys of a key file, without the secrets.

    mainspring doctor counts the jobs that each key has signed.

    Example: mainspring keys list --file keys.toml
    """
    try:
        ring = KeyRing.from_file(path)
    except (ValueError, FileNotFoundError) as error:
        raise click.BadParameter(str(error)) from error
    if as_json:
        print_json({"keys": [_fields(ring, name) for name in ring.ids]})
        return
    rows = [[name, ring.algorithm_of(name), _use(ring, name)] for name in ring.ids]
    print_table(("KEY", "ALGORITHM", "USE"), rows, uncut=("KEY",))


def _fields(ring: KeyRing, name: str) -> dict[str, Any]:
    return {"key": name, "algorithm": ring.algorithm_of(name), "signs": name == ring.sign_with}


def _use(ring: KeyRing, name: str) -> str:
    return "signs and verifies" if name == ring.sign_with else "verifies"
