"""Commands of a user who may read a store and not write to it: they list, and they leave nothing behind.

Root may write everywhere. So the commands run in a process that has given up its rights, in a folder that every
user may enter. That process imports everything first, because other users may not read this installation.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.cli.shop_program import ENVIRONMENT, CommandResult, ShopProgram
from tests.programs import run_python

UNAVAILABLE = 3
OTHER_USER = 65534  # a user without any rights, on Debian
PROGRAM = """
import contextlib, os, sys, urllib.parse  # since Python 3.13, `Path.as_uri` imports the last one when it is called
from mainspring.cli.exit_codes import run_cli
from mainspring.cli.main import commands

other, user = sys.argv.pop(1), int(sys.argv.pop(1))
with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
    url, sys.argv[-1] = sys.argv[-1], other
    run_cli(commands)  # imports the modules of the command
sys.argv[-1] = url
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
sys.exit(run_cli(commands))
"""
READING = [
    ("jobs", "list"),
    ("jobs", "show", "later"),
    ("dlq", "list"),
    ("dlq", "show", "dead"),
    ("explain", "later"),
    ("queues", "list"),
    ("schedules", "list"),
    ("audit",),
]
WRITING = [("jobs", "cancel", "later"), ("queues", "pause", "orders"), ("dlq", "replay", "dead")]


class ReadOnlyStore:
    """A store in a folder that this process may write to, and the process of the commands may not."""

    def __init__(self, shop: ShopProgram) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mainspring-"))
        self.shop = shop.in_folder(self.folder)
        self.shop.make_dead_letters("dead")
        self.shop.submit({"order_id": 1}, id="later")
        (self.folder / "shop.py").unlink()
        other = shop.folder / "other.db"  # for the first run of each command, which imports the modules
        with self.shop.open() as app:
            app.backup(str(other))  # a copy of the file alone may lack what is still in the log
        self._other_url = f"sqlite:///{other}"

    def protect(self, *, folder_mode: int = 0o555, file_mode: int = 0o444) -> None:
        """Take the right to write from other users; if this user is not root, from this user, too."""
        for path in self.folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else file_mode)
        self.folder.chmod(folder_mode)

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def run(self, *arguments: str) -> CommandResult:
        script = ("-c", PROGRAM, self._other_url, str(OTHER_USER))
        done = run_python(*script, *arguments, "--url", self.shop.url, folder=Path("/"), environment=ENVIRONMENT)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def close(self) -> None:
        self.folder.chmod(0o755)
        shutil.rmtree(self.folder)


def without_distances(output: str) -> str:
    """Remove how long ago an instant was, which changes between two commands."""
    return re.sub(r"\((now|in \d[^)]*|\d[^)]* ago)\)", "()", output)


@pytest.fixture
def store(shop: ShopProgram) -> Iterator[ReadOnlyStore]:
    store = ReadOnlyStore(shop)
    yield store
    store.close()


@pytest.mark.long
@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_store_that_no_process_has_open_is_read(store: ReadOnlyStore, command: tuple[str, ...]) -> None:
    expected = store.shop.run(*command, "--url", store.shop.url)
    assert expected.code == 0
    before = store.files()
    store.protect()
    done = store.run(*command)
    assert (done.code, done.errors) == (0, expected.errors)
    assert without_distances(done.output) == without_distances(expected.output)
    assert store.files() == before


@pytest.mark.parametrize("mode", [{"folder_mode": 0o777}, {"file_mode": 0o666}], ids=["folder", "file"])
def test_a_folder_or_a_file_alone_does_not_suffice_to_write(store: ReadOnlyStore, mode: dict[str, int]) -> None:
    store.protect(**mode)
    before = store.files()
    assert "dead" in store.run("dlq", "list").output
    assert store.files() == before  # files of this user beside the store would lock out its owner


def test_a_store_that_a_worker_has_open_is_read_with_its_last_changes(store: ReadOnlyStore) -> None:
    with store.shop.open() as app, app.running():
        app.manager().submit("shop.cancel_order", {"order_id": 2}, id="newest", delay=3600)
        store.protect(file_mode=0o644)
        assert "newest" in store.run("jobs", "list").output
        assert "alive" in store.run("workers", "list").output
        store.folder.chmod(0o755)


def test_a_store_whose_worker_was_killed_is_read_with_its_last_changes(
    store: ReadOnlyStore, shop: ShopProgram
) -> None:
    with store.shop.open() as app:
        app.manager().submit("shop.cancel_order", {"order_id": 2}, id="newest", delay=3600)
        copies = {path: path.read_bytes() for path in store.folder.iterdir() if path.is_file()}
    for path, content in copies.items():  # as a killed process leaves them
        path.write_bytes(content)
    store.protect()
    assert "newest" in store.run("jobs", "list").output
    store.folder.chmod(0o755)
    (store.folder / "shop.db-shm").unlink()
    store.protect()
    refused = store.run("jobs", "list")
    assert refused.code == UNAVAILABLE
    assert "can read shop.db-wal, which has changes that the file lacks; " in refused.error_line


@pytest.mark.parametrize("command", WRITING, ids=" ".join)
def test_a_command_that_writes_says_that_it_may_not(store: ReadOnlyStore, command: tuple[str, ...]) -> None:
    store.protect()
    done = store.run(*command)
    assert done.code == UNAVAILABLE
    assert "may not write to it, so it can be read only; " in done.error_line
    if os.geteuid() == 0:
        assert "run as user root, who owns it, or give user nobody write access" in done.error_line


def test_an_old_store_says_that_it_must_be_migrated(store: ReadOnlyStore) -> None:
    old = Path(__file__).parents[1] / "data" / "store-0.1" / "json.tar.xz"
    shutil.unpack_archive(old, store.folder / "old", filter="data")
    (file,) = (store.folder / "old").rglob("*.db")
    store.shop.url = f"sqlite:///{file}"
    for path in (file.parent, *file.parents):
        if store.folder in path.parents or path == store.folder:
            path.chmod(0o555)
    file.chmod(0o444)
    done = store.run("jobs", "list")
    assert done.code == UNAVAILABLE
    assert "its schema must be migrated, and user " in done.error_line
    for path in file.parents:
        if store.folder in path.parents:
            path.chmod(0o755)


def test_a_store_becomes_writable_again(store: ReadOnlyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Mainspring(store.shop.url, durability="normal")
    with monkeypatch.context() as patch:
        patch.setattr("mainspring.engines.sqlite.database.may_write", lambda _path: False)
        assert app.get("later").status == "PENDING"
        app.close()
    assert app.cancel("later")
    app.close()
