"""Bring Prometheus and promtool for the tests: python -m scripts.fetch_prometheus.

Programs on PATH are used as they are. Otherwise the script unpacks the two programs of the Debian package
`prometheus` into `.prometheus` of this checkout.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scripts.debian_packages import PackageMissing, require_success, unpack_package

FOLDER = Path(__file__).parents[1] / ".prometheus"
PROGRAMS = ("prometheus", "promtool")
BY_HAND = "put `prometheus` and `promtool` on PATH, from https://prometheus.io/download or your distribution"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusTools:
    """The programs of Prometheus that tests run."""

    prometheus: Path
    promtool: Path


def ensure(folder: Path = FOLDER) -> PrometheusTools:
    """Return the programs; download them first if neither PATH nor the folder has them."""
    on_path = [shutil.which(name) for name in PROGRAMS]
    if all(on_path):
        return PrometheusTools(**dict(zip(PROGRAMS, map(Path, filter(None, on_path)), strict=True)))
    programs = folder / "bin"
    if not programs.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:  # of several test processes, one downloads
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not programs.exists():
                _download(programs)
    return PrometheusTools(prometheus=programs / "prometheus", promtool=programs / "promtool")


def copy_programs(checkout: Path) -> None:
    """Bring the programs into another checkout, so that its tests find them without a download."""
    tools, target = ensure(), checkout / FOLDER.name / "bin"
    target.mkdir(parents=True)
    shutil.copy2(tools.prometheus, target)
    shutil.copy2(tools.promtool, target)


def _download(programs: Path) -> None:
    with tempfile.TemporaryDirectory(dir=programs.parent) as temporary:
        work = Path(temporary)
        unpacked = unpack_package("prometheus", work, by_hand=BY_HAND)
        ready = work / "ready"
        ready.mkdir()
        for name in PROGRAMS:
            program = unpacked / "usr" / "bin" / name
            if not program.exists():
                raise PackageMissing(f"the package prometheus has no usr/bin/{name}; {BY_HAND}")
            program.rename(ready / name)
            require_success([str(ready / name), "--version"], f"run {name}", by_hand=BY_HAND)
        ready.rename(programs)  # complete, or not there


if __name__ == "__main__":
    try:
        ensure()
    except PackageMissing as problem:
        sys.exit(str(problem))
