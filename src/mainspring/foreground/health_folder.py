"""The folder in which the workers of one user leave their signs of life.

It is `mainspring-<uid>` in a place of the user's choice, or in one for all users: so somebody else may have made
it before us, or a link in its stead. It is used only if it is ours and nobody else can write there, and everything
in it is reached by way of its descriptor, never by a path that could change meanwhile.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = "MAINSPRING_HEALTH_DIR"
PRIVATE = 0o700


class FolderUnsafe(OSError):
    """The folder is not ours alone."""


def choose_folder(given: str | None, environment: Mapping[str, str]) -> Path:
    """Return the folder: in the given place, or in that of the environment, or in that for temporary files."""
    place = given or environment.get(VARIABLE) or environment.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(place).absolute() / f"mainspring-{os.getuid()}"


@contextmanager
def opened(folder: Path, *, makes: bool = False) -> Iterator[int]:
    """Open the folder and lend its descriptor; `OSError` if there is none, `FolderUnsafe` if it is not ours."""
    if makes:
        with suppress(FileExistsError):
            folder.mkdir(PRIVATE, parents=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _require_ours(os.fstat(descriptor), folder)
        yield descriptor
    finally:
        os.close(descriptor)


def _require_ours(found: os.stat_result, folder: Path) -> None:
    if found.st_uid != os.getuid():
        raise FolderUnsafe(f"{folder} belongs to user {found.st_uid}; name another place: {VARIABLE}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise FolderUnsafe(f"{folder} is open to other users; remove it, or: chmod 700 {folder}")
