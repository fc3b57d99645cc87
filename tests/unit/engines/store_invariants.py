"""Checks the invariants of `engines.sqlite.waiting_groups` in a SQLite file, row by row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from mainspring.engines.sqlite.codec import PENDING, RUNNING, limits_of, number_of
from mainspring.jobs.limits import family_of
from mainspring.jobs.records import SUSPECT_CRASHES

ROWS = """
SELECT jobs.seq, jobs.id, status, jobs.due, ready, wait, sequence, turn, name, grp, owner, crashes, moved
FROM jobs LEFT JOIN groups ON groups.id = grp ORDER BY jobs.seq
"""
BEHIND_IN_SEQUENCE, BEHIND_IN_GROUP = 1, 2


class Row(NamedTuple):
    """The columns of a job that decide whether it can be claimed."""

    seq: int
    id: str
    status: int
    due: int
    ready: int
    wait: int
    sequence: str | None
    turn: int | None
    group: str | None
    number: int | None
    owner: int | None
    crashes: int
    moved: int | None

    @property
    def head_key(self) -> tuple[str | None, bool]:
        """Its group, and whether it is a suspect: suspects have a head of their own."""
        return self.group, self.crashes >= SUSPECT_CRASHES


@contextmanager
def connected(path: Path) -> Iterator[apsw.Connection]:
    """Read a file that no engine has open."""
    connection = apsw.Connection(str(path))
    try:
        yield connection
    finally:
        connection.close()


def dump(path: Path) -> dict[str, list[Any]]:
    """Return all rows of all tables."""
    with connected(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {table: sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in tables}


def check_invariants(path: Path) -> None:
    """Fail if a job can be claimed that must wait, or if a job waits that must be claimable."""
    with connected(path) as connection:
        rows = [Row(*row) for row in connection.execute(ROWS)]
        groups = {name: tuple(others) for name, *others in _select(connection, "groups", "name, jobs, due, seq")}
        parked = dict(_select(connection, "parked", "name, bucket"))
        waits = {bucket for (bucket,) in _select(connection, "waits", "bucket")}
        occupied = Counter(dict(_select(connection, "occupied", "bucket, running")))
        limits = {family: (most, per) for family, most, per in _select(connection, "limits", "family, most, per")}
    _check_sequences(rows)
    _check_groups(rows, set(parked))
    _check_members(rows, groups)
    at_once = {family for family, (_, per) in limits.items() if per is None}
    _check_occupied(rows, occupied, at_once)
    _check_parked(rows, parked, occupied, limits)
    rated = {bucket for bucket in parked.values() if limits[family_of(bucket)][1] is not None}
    assert rated <= waits, rated - waits  # each parked rate has a time at which it is checked again
    for row in rows:
        assert row.number == number_of(row.group), row
        if row.status == PENDING and row.wait == 0:
            assert row.ready >= row.due, row
            assert row.group is not None or row.ready == row.due, row


def _select(connection: apsw.Connection, table: str, columns: str) -> Iterable[Any]:
    return list(connection.execute(f"SELECT {columns} FROM {table}"))


def _check_sequences(rows: list[Row]) -> None:
    sequences: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.sequence is None:
            assert row.status != PENDING or row.wait != BEHIND_IN_SEQUENCE, row
        else:
            sequences[row.sequence].append(row)
    for members in sequences.values():
        running = [row for row in members if row.status == RUNNING]
        waiting = sorted((row for row in members if row.status == PENDING), key=lambda row: (row.turn, row.seq))
        free = [row for row in waiting if row.wait != BEHIND_IN_SEQUENCE]
        assert len(running) <= 1, members
        assert free == ([] if running else waiting[:1]), members


def _check_groups(rows: list[Row], parked: set[str]) -> None:
    groups: defaultdict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row.status == PENDING and row.owner is None and row.wait != BEHIND_IN_SEQUENCE:
            if row.group is None:
                assert row.wait == 0, row
            else:
                groups[row.head_key].append(row)
    for (group, _), members in groups.items():
        members.sort(key=lambda row: (row.due, row.seq))
        free = [row for row in members if row.wait != BEHIND_IN_GROUP]
        assert free == ([] if group in parked else members[:1]), members


def _check_members(rows: list[Row], groups: dict[str, tuple[int, int, int]]) -> None:
    """Fail if the count of a group is wrong, or if searches for its next head skip a waiting job."""
    assert {name: jobs for name, (jobs, _, _) in groups.items()} == Counter(row.group for row in rows if row.group)
    for row in rows:
        if row.group is not None and row.moved is None:
            is_behind = (row.due, row.seq) > groups[row.group][1:]
            is_waiting = row.status == PENDING and row.owner is None
            assert is_behind == is_waiting, row
            assert not is_waiting or (row.sequence is None and row.crashes < SUSPECT_CRASHES), row


def _check_occupied(rows: list[Row], occupied: Counter[str], at_once: set[str]) -> None:
    running = [bucket for row in rows if row.status == RUNNING for bucket in limits_of(row.group)]
    assert +occupied == Counter(bucket for bucket in running if family_of(bucket) in at_once)
    assert min(occupied.values(), default=0) >= 0, occupied


def _check_parked(
    rows: list[Row],
    parked: dict[str, str],
    occupied: Counter[str],
    limits: dict[str, tuple[int, int | None]],
) -> None:
    """Fail if a group is parked for a bucket whose capacity no claimable job can use up."""
    free = [row for row in rows if row.status == PENDING and row.owner is None and row.wait == 0]
    for group, bucket in parked.items():
        assert bucket in limits_of(group), (group, bucket)
        assert family_of(bucket) in limits, bucket
        most, per = limits[family_of(bucket)]
        if per is None:
            users = sum(bucket in limits_of(row.group) for row in free)
            assert occupied[bucket] + users >= most, (group, bucket, occupied[bucket], users)
