"""Lanes: a number for each (queue, type, priority), remembered here so that rows need not be joined."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.rows import to_json
from mainspring.engines.sqlite.settings import paused_queues
from mainspring.jobs.engine import HEAD_START

Lane: TypeAlias = tuple[str, str, int]

_lane_rows = msgspec.json.Decoder(list[tuple[int, str, str, int]]).decode


class Lanes:
    """The lanes of one store. Lanes are never removed, so what was read stays true."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[Lane, int] = {}
        self._lanes: dict[int, Lane] = {}
        self._batches: dict[tuple[tuple[str, ...], tuple[str, ...] | None], str] = {}
        self._version: str | None = None
        self._paused: frozenset[str] = frozenset()

    def numbers(self, wanted: Iterable[Lane]) -> dict[Lane, int]:
        """Return the numbers of these lanes, made if need be, inside of the current unit."""
        missing = [lane for lane in wanted if lane not in self._numbers]
        if missing:
            for lane in missing:
                self._database.write(sql.ADD_LANE, lane)
            self._read()
        return self._numbers

    def matching(self, types: tuple[str, ...], queues: tuple[str, ...] | None) -> str:
        """Return the batch of lanes, with their head starts, that serve these handlers; empty if there is none.

        Lanes of paused queues are not among them.
        """
        version = self._database.write(sql.LANES_VERSION)
        if version != self._version:
            self._read()
            self._paused = paused_queues(self._database)
            self._version = version
        key = (types, queues)
        batch = self._batches.get(key)
        if batch is None:
            lanes = [
                (number, HEAD_START * priority)
                for number, (queue, kind, priority) in self._lanes.items()
                if kind in types and (queues is None or queue in queues) and queue not in self._paused
            ]
            batch = self._batches[key] = to_json(lanes) if lanes else ""
        return batch

    def describe(self, number: int) -> Lane:
        """Return queue, type and priority."""
        return self._lanes[number]

    def forget(self) -> None:
        """Read everything again: what was read may have been rolled back."""
        self._numbers.clear()
        self._lanes.clear()
        self._batches.clear()
        self._version = None

    def _read(self) -> None:
        self._batches.clear()
        self._lanes = {row[0]: row[1:] for row in _lane_rows(self._database.write(sql.LANES).encode())}
        self._numbers = {lane: number for number, lane in self._lanes.items()}
