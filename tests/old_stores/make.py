"""Make stores with the code that is installed, to keep them as test data for later versions.

    python -m tests.old_stores.make tests/data/store-0.2

A store is made in the way in which users fill theirs: an application submits jobs, a worker runs some of them, and
workers are killed (`kill -9`) while they run others. No worker has seen what was submitted last. SQLite stores are
made on a manual clock that begins at `START`; a NATS server has its own time, so its store is as old as its files.

Run it for a new format only, and never again for the same version: see CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import apsw

from mainspring import NatsSettings
from mainspring.cli.nats_servers import NatsServers
from mainspring.clock import SystemClock
from mainspring.engines.sqlite import schema
from mainspring.testing import ManualClock
from tests.old_stores import filling
from tests.old_stores.shop import Shop
from tests.support import PATIENCE, eventually

START = datetime(2026, 1, 5, 12, tzinfo=UTC)
PREFIX = "old"
LEASE = 3.0
"""Seconds after which the jobs of a killed worker belong to others, on NATS: the maker has to wait for it."""


@dataclass
class Site:
    """Where a store is made, and how old it is by its own clock."""

    url: str
    serializer: Literal["json", "msgpack"] = "json"
    is_manual: bool = True
    seconds: float = 0

    @contextmanager
    def opened(self, **flags: Any) -> Iterator[Shop]:
        """Open the store, a minute after the last time, without a worker."""
        clock = ManualClock(START + timedelta(seconds=self.seconds)) if self.is_manual else SystemClock()
        nats = None if self.is_manual else NatsSettings(prefix=PREFIX, lease=LEASE)
        shop = Shop(self.url, serializer=self.serializer, clock=clock, nats=nats, **flags)
        with shop.app:
            yield shop
        self.seconds += 60

    def kill_worker(self, until: str) -> None:
        """Run a worker in a process of its own, which kills itself when a condition is met."""
        arguments = [self.url, self.serializer, str(self.is_manual), str(self.seconds), until]
        command = [sys.executable, "-m", "tests.old_stores.make", "--killed", *arguments]
        done = subprocess.run(command, check=False, timeout=2 * PATIENCE)
        assert done.returncode == -signal.SIGKILL, f"the worker has ended with {done.returncode}"
        self.seconds += 60


def wait_until(condition: Callable[[Shop], bool], shop: Shop) -> None:
    """Look again and again whether a condition is met."""
    is_met = eventually(lambda: condition(shop))
    assert is_met, f"{condition.__name__}: {shop.app.counts()}, {shop.ledger.calls}"


def be_killed(url: str, serializer: str, is_manual: str, seconds: str, until: str) -> None:
    """Be a worker whose long handlers do not end, until a condition is met; then die."""
    site = Site(url, serializer, is_manual == "True", float(seconds))  # type: ignore[arg-type]
    with site.opened(is_broken=True, holds=True) as shop:
        shop.app.events()  # from now on the journal is written
        with shop.app.running():
            wait_until(getattr(filling, until), shop)
            os.kill(os.getpid(), signal.SIGKILL)


def fill(site: Site) -> None:
    """Fill a store with jobs of all kinds, in all states."""
    with site.opened(is_broken=True) as shop:
        shop.app.events()
        filling.submit_ended(shop)
        with shop.app.running():
            wait_until(filling.has_ended, shop)
            filling.put_ending_schedule(shop)
            if isinstance(shop.clock, ManualClock):
                shop.clock.advance(seconds=2)
            wait_until(filling.has_fired, shop)
        filling.cancel_and_replay(shop)
    with site.opened() as shop, shop.app.running():
        wait_until(filling.has_replayed, shop)
    with site.opened() as shop:
        filling.submit_poison(shop)
    for _ in range(3):
        site.kill_worker("runs_poison")
    with site.opened(holds=True) as shop, shop.app.running():
        wait_until(filling.has_quarantined, shop)
    with site.opened() as shop:
        filling.submit_interrupted(shop, is_held=site.is_manual)
    site.kill_worker("holds_all")
    with site.opened() as shop:
        filling.submit_waiting(shop)
        filling.put_schedules(shop)


# -- kinds of stores


def make_sqlite(target: Path, serializer: Literal["json", "msgpack"] = "json") -> None:
    """Make a SQLite file, with its log written back into it, and the lock files of its killed worker beside it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        fill(Site(f"sqlite:///{path}", serializer))
        connection = apsw.Connection(str(path))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        assert not path.with_name("jobs.db-wal").exists()
        _pack(target, path, path.with_name("jobs.db-workers"))


def make_first_schema(target: Path) -> None:
    """Make a SQLite file of the first schema, with rows as its code wrote them.

    No version with that schema was released, and no later one writes it. This needs version 0.1.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        connection = apsw.Connection(str(path))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(schema.MIGRATIONS[0])
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1")
        filling.insert_first_schema(connection, round(START.timestamp() * 1_000_000))
        connection.close()
        _pack(target, path)


def make_nats(target: Path) -> None:
    """Make the store of a NATS server, which was stopped in order."""
    with TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        os.environ["XDG_CACHE_HOME"] = folder  # for the local copies that lists are made from
        with NatsServers(store=store) as servers:
            fill(Site(servers.url, is_manual=False))
            (node,) = servers.nodes
            name = node.name
        _pack(target, store / name / "jetstream")


def _pack(target: Path, *paths: Path) -> None:
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path in paths:
            archive.add(path, path.name, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out owners, and the pipes by which workers are woken: no archive can hold them."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member if member.isfile() or member.isdir() else None


def main(folder: Path) -> None:
    """Make all stores in a new folder."""
    folder.mkdir(parents=True)
    make_sqlite(folder / "json.tar.xz")
    make_sqlite(folder / "msgpack.tar.xz", "msgpack")
    make_nats(folder / "jetstream.tar.xz")
    for path in sorted(folder.iterdir()):
        sys.stdout.write(f"{path} {path.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    if sys.argv[1] == "--killed":
        be_killed(*sys.argv[2:])
    elif sys.argv[1] == "--first-schema":
        make_first_schema(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
