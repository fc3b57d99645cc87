"""Examines a store in a SQLite file: first the file and its folder, then the content."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from math import inf
from pathlib import Path

from mainspring.clock import Clock
from mainspring.doctor import sqlite_content as content
from mainspring.doctor import sqlite_location as location
from mainspring.doctor.examination import Examination
from mainspring.doctor.findings import Check, Finding, Severity, error, info, ok
from mainspring.doctor.sqlite_location import MOUNTS, check_file_system
from mainspring.engines.sqlite.provider import stat_or_none, to_path
from mainspring.engines.sqlite.read_only import may_write, user_name

BUDGET = 1.0
"""How many seconds the integrity check may take, unless the examination is thorough."""


def examine_store(examination: Examination) -> None:
    """Examine the SQLite file, then the jobs, if the file is not damaged and can be opened without changes."""
    path = to_path(examination.app.url).resolve()
    checks = store_checks(
        path,
        examination.clock,
        examination.app.durability if examination.has_handlers else None,
        budget=inf if examination.thorough else BUDGET,
        on_step=examination.still_busy,
    )
    worst = {check.name: examination.carry_out([check]) for check in checks}
    is_damaged = worst.get("integrity") is Severity.ERROR
    examination.examine_jobs("the file is damaged" if is_damaged else content.why_not_open(path), counts=True)


def store_checks(
    path: Path, clock: Clock, durability: str | None, *, budget: float, on_step: Callable[[], None]
) -> list[Check]:
    """Return the checks that apply to a SQLite store, as far as its folder and file exist.

    The integrity check takes at most `budget` seconds. `durability` is None if the application is unknown.
    """
    checks = [Check("file", lambda: check_file(path))]
    try:
        if _is_folder(path.parent):
            checks += _checks_of_location(path, clock, durability)
        found = stat_or_none(path)
        if found is not None and stat.S_ISREG(found.st_mode):
            checks.append(Check("schema", lambda: content.check_schema(path)))
            if found.st_size:
                checks += _checks_of_content(
                    path, clock, lambda: content.check_integrity(path, clock, budget, on_step)
                )
    except PermissionError:
        pass  # the check "file" reports the problem
    return checks


def check_file(path: Path) -> Finding:
    """Report an error if the path of the store is no file, or its folder is missing or closed to this user."""
    try:
        return _find_problem(path)
    except PermissionError as problem:
        return error(
            f"user {os.geteuid()} may not access the store: {problem}",
            "Submits and workers of this user fail.",
            "Allow this user to enter the folder, or run as the user who owns the store.",
        )


def _find_problem(path: Path) -> Finding:
    remedy = "Check the path and the working directory; the first submit or worker creates the file."
    if not _is_folder(path.parent):
        return error(
            f"there is no folder {path.parent}",
            "The store cannot be created there.",
            "Create the folder, or name another one.",
        )
    if _is_folder(path):
        return error(f"{path} is a folder", "A store is one file.", "Name a file inside of this folder.")
    if stat_or_none(path) is None:
        return error(f"there is no file {path}", "This store was never used, or the path is wrong.", remedy)
    return ok(f"the store is {path}")


def _is_folder(path: Path) -> bool:
    found = stat_or_none(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _checks_of_location(path: Path, clock: Clock, durability: str | None) -> list[Check]:
    checks = [
        Check("file-system", lambda: check_file_system(path.parent, _mounts())),
        Check("permissions", lambda: location.check_permissions(path)),
        Check("disk", lambda: location.check_disk(path, *location.room_at(path.parent))),
        Check("fsync", lambda: _check_sync(path.parent, clock, durability)),
    ]
    if durability is not None:
        checks.append(Check("durability", lambda: location.check_durability(durability)))
    return checks


def _check_sync(folder: Path, clock: Clock, durability: str | None) -> Finding:
    if not may_write(folder):
        return info(f"the time of an fsync was not measured: user {user_name()} may not write to {folder}")
    return location.check_sync(location.measure_sync(folder, clock), durability)


def _checks_of_content(path: Path, clock: Clock, check_integrity: Callable[[], Finding]) -> list[Check]:
    return [
        Check("journal", lambda: content.check_journal(path)),
        Check("integrity", check_integrity),
        Check("log", lambda: content.check_log(path)),
        Check("free-pages", lambda: content.check_free_pages(path)),
        Check("times", lambda: content.check_times(path, clock.now())),
        Check("activity", lambda: content.check_activity(path, clock.now())),
    ]


def _mounts() -> str | None:
    return MOUNTS.read_text() if MOUNTS.exists() else None
