"""Bring Prometheus and promtool for the tests: fetch_prometheus.py.

Programs on PATH are used as they are. Otherwise apt downloads the package `prometheus` of Debian or Ubuntu, and
the script unpacks the two programs into `.prometheus` of this checkout. It installs nothing, so it does not need
root. The mirror and the proxies are those of this machine's apt. If apt has no package lists, or old ones, it gets
lists of its own in a temporary folder.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".prometheus"
PACKAGE = "prometheus"
PROGRAMS = ("prometheus", "promtool")
BY_HAND = "put `prometheus` and `promtool` on PATH, from https://prometheus.io/download or your distribution"


class PrometheusMissing(Exception):
    """Prometheus cannot be had here; the text says why, and what to do."""


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
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise PrometheusMissing(
                f"the tests need Prometheus, and this machine has no {tool} to fetch it; {BY_HAND}"
            )
    print(f"downloading the package {PACKAGE} with apt", flush=True)
    with tempfile.TemporaryDirectory(dir=programs.parent) as temporary:
        work = Path(temporary)
        package = _fetch_package(work)
        unpacked = work / "unpacked"
        _require(["dpkg-deb", "--extract", str(package), str(unpacked)], "unpack the package")
        ready = work / "ready"
        ready.mkdir()
        for name in PROGRAMS:
            program = unpacked / "usr" / "bin" / name
            if not program.exists():
                raise PrometheusMissing(f"{package.name} has no usr/bin/{name}; {BY_HAND}")
            program.rename(ready / name)
            _require([str(ready / name), "--version"], f"run {name}")
        ready.rename(programs)  # complete, or not there


def _fetch_package(work: Path) -> Path:
    """Download with the lists that the machine has, else with lists of our own."""
    lists, cache = work / "lists", work / "cache"
    for directory in (lists / "partial", cache / "archives" / "partial"):
        directory.mkdir(parents=True)
    # The sandbox user of apt cannot write to our folder; root's downloads are verified all the same.
    apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=root"]
    own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "Acquire::Languages=none"]
    attempt = _run([*apt, "download", PACKAGE], work)
    if attempt.returncode:
        # A source that does not answer is no reason to give up: the package may come from another one.
        update = _run([*apt, *own, "update"], work)
        attempt = _run([*apt, *own, "download", PACKAGE], work)
        if attempt.returncode:
            output = f"{update.stdout}{attempt.stdout}".strip()
            raise PrometheusMissing(
                f"apt cannot download the package {PACKAGE}:\n{output}\n"
                f"Check the network and the sources of apt (Ubuntu: the component universe), or {BY_HAND}."
            )
    (package,) = work.glob(f"{PACKAGE}_*.deb")
    return package


def _run(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _require(command: Sequence[str], what: str) -> None:
    done = _run(command)
    if done.returncode:
        raise PrometheusMissing(f"cannot {what}: {done.stdout.strip()}; {BY_HAND}")


if __name__ == "__main__":
    try:
        ensure()
    except PrometheusMissing as problem:
        sys.exit(str(problem))
