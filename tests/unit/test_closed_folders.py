"""Stores in a folder that this user may not enter: that is another fault than a store that is not there.

As of Python 3.14 `Path.exists`, `is_file` and `is_dir` answer False for both. Tests may run as root, who may enter
every folder, so they refuse at the system call.
"""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mainspring import EngineUnavailable, Mainspring
from mainspring.cli.app_selection import require_store
from mainspring.engines.sqlite.provider import stat_or_none


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mainspring:
    """An application whose store is in a closed folder."""
    stat, folder = os.stat, tmp_path / "closed"
    folder.mkdir()
    (folder / "shop.db").touch()

    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | Path) and Path(path).parent == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
    return Mainspring(f"sqlite:///{folder / 'shop.db'}")


def test_a_command_says_that_it_may_not_look(app: Mainspring) -> None:
    with pytest.raises(EngineUnavailable, match=r"may not access it .*; allow this user to enter"):
        require_store(app)


def test_an_application_says_that_it_may_not_look(app: Mainspring) -> None:
    with pytest.raises(EngineUnavailable, match=r"may not access it .*; allow this user to enter"):
        app.manager()


def test_a_file_that_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("nothing", "file/inside", "circle", "no\0name"):
        assert stat_or_none(tmp_path / name) is None
    assert stat_or_none(tmp_path / "file") is not None
