"""The watcher of source files: which files it watches, and which changes it reports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Event

import pytest

from mainspring.cli import reload
from mainspring.cli.reload import SourceWatcher, files_below, imported_files
from tests.support import PATIENCE


@pytest.fixture(autouse=True)
def _polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(reload, "QUIET_SECONDS", 0.005)


@pytest.fixture
def changed() -> Event:
    return Event()


def write(path: Path, text: str = "x = 1") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_files_of_the_application_are_watched_and_not_those_of_installed_packages() -> None:
    files = imported_files()
    assert os.path.realpath(__file__) in files
    assert os.path.realpath(str(json.__file__)) not in files
    assert os.path.realpath(str(pytest.__file__)) not in files


def test_a_folder_is_searched_without_hidden_folders_and_environments(tmp_path: Path) -> None:
    expected = {write(tmp_path / "shop.py"), write(tmp_path / "orders" / "jobs.py")}
    write(tmp_path / "notes.txt")
    write(tmp_path / "environment" / "pyvenv.cfg")
    for name in (".git/hook.py", "environment/lib/package.py", "node_modules/tool.py", "__pycache__/a.py"):
        write(tmp_path / name)
    assert files_below(tmp_path) == expected


@pytest.mark.parametrize("how", ["written", "replaced", "removed"])
def test_a_file_that_is_changed_in_any_way_is_reported_once(tmp_path: Path, changed: Event, how: str) -> None:
    file = write(tmp_path / "shop.py")
    calls: list[None] = []

    def note() -> None:
        calls.append(None)
        changed.set()

    with SourceWatcher(lambda: {file}, note):
        if how == "written":
            write(tmp_path / "shop.py", "x = 22")
        elif how == "replaced":
            Path(write(tmp_path / "draft")).replace(file)
        else:
            Path(file).unlink()
        assert changed.wait(PATIENCE)
    assert calls == [None]


def test_a_file_that_is_imported_later_is_watched_from_then_on(tmp_path: Path, changed: Event) -> None:
    found, polls = {write(tmp_path / "shop.py")}, [Event(), Event()]

    def find_files() -> set[str]:
        if str(tmp_path / "late.py") in found:
            polls[min(1, polls[0].is_set())].set()
        return set(found)

    with SourceWatcher(find_files, changed.set):
        found.add(write(tmp_path / "late.py"))
        assert polls[1].wait(PATIENCE)  # it was read once, and compared once
        assert not changed.is_set()
        write(tmp_path / "late.py", "x = 22")
        assert changed.wait(PATIENCE)


def test_a_new_file_counts_after_a_failed_import(tmp_path: Path, changed: Event) -> None:
    write(tmp_path / "shop.py")
    with SourceWatcher(lambda: files_below(tmp_path), changed.set, counts_new=True):
        write(tmp_path / "orders.py")
        assert changed.wait(PATIENCE)


def test_without_a_change_nothing_is_reported(tmp_path: Path, changed: Event) -> None:
    file = write(tmp_path / "shop.py")
    polls: list[None] = []
    enough = Event()

    def find_files() -> set[str]:
        polls.append(None)
        if len(polls) > 3:
            enough.set()
        return {file}

    with SourceWatcher(find_files, changed.set):
        assert enough.wait(PATIENCE)
    assert not changed.is_set()
