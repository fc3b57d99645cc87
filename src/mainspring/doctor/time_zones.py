"""The time zone data that schedules go by, and how old it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mainspring.doctor.findings import Finding, error, info, ok, warning

OLD = timedelta(days=365)
_VERSION = re.compile(r"(\d{4})([a-z]|\.\d+)")


@dataclass(frozen=True, slots=True)
class ZoneData:
    """Where `zoneinfo` finds its data, and of which version it is, if that is known."""

    source: str
    version: str | None
    is_package: bool = False


def find_zone_data(folders: Iterable[str]) -> ZoneData | None:
    """Return what `zoneinfo` uses: the first folder that has zones, or else the package `tzdata`."""
    for folder in map(Path, folders):
        if (folder / "UTC").exists() or (folder / "Etc" / "UTC").exists():
            return ZoneData(str(folder), _version_in(folder))
    try:
        return ZoneData("the package tzdata", version("tzdata"), is_package=True)
    except PackageNotFoundError:
        return None


def _version_in(folder: Path) -> str | None:
    for name in ("tzdata.zi", "+VERSION", "version"):
        try:
            with (folder / name).open() as file:
                found = _VERSION.search(file.readline())
        except OSError:
            continue
        if found:
            return found[0]
    return None


def check_time_zones(data: ZoneData | None, now: datetime) -> Finding:
    """Judge whether there is time zone data, and whether it is old."""
    if data is None:
        return error(
            "there is no time zone data",
            "Schedules with a time zone cannot be computed.",
            "pip install tzdata, or install tzdata with the system's package manager.",
        )
    year = _VERSION.match(data.version or "")
    if data.version is None or year is None:
        return info(
            f"of which version the time zone data in {data.source} is cannot be seen",
            "Governments change their clocks at short notice, and old data makes schedules an hour late or early.",
            "Keep the tzdata package of the system up to date.",
        )
    published = datetime(int(year[1]), 7, 1, tzinfo=UTC)  # only the year is known for sure
    if now - published < OLD:
        return ok(f"time zone data {data.version}, from {data.source}")
    return warning(
        f"the time zone data in {data.source} is version {data.version}, older than a year",
        "Governments change their clocks at short notice, and old data makes schedules an hour late or early.",
        "pip install --upgrade tzdata"
        if data.is_package
        else "Update it with the system's package manager; or set PYTHONTZPATH to nothing, and Python uses the "
        "package tzdata that is installed with Mainspring.",
    )
