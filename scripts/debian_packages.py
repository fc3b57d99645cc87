"""Download packages of Debian or Ubuntu and unpack them into a folder, for programs that only tests run.

apt downloads, dpkg-deb unpacks. Nothing is installed, so root is not needed. The mirror and the proxies are those
of this machine's apt. If apt has no package lists, or old ones, it gets lists of its own in the folder.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path


class PackageMissing(Exception):
    """A package cannot be had here; the text says why, and what to do."""


def unpack_package(package: str, work: Path, *, by_hand: str) -> Path:
    """Download one package, and return the folder with its files."""
    return _unpack(package, ["download", package], work, by_hand)


def unpack_with_dependencies(package: str, work: Path, *, by_hand: str) -> Path:
    """Download a package and the dependencies that this machine lacks; return the folder with all files."""
    # Nothing is installed, so the lock of dpkg, which only root may take, is not needed.
    options = ["--yes", "--no-install-recommends", "--download-only", "-o", "Debug::NoLocking=true"]
    return _unpack(package, ["install", *options, package], work, by_hand)


def require_success(command: Sequence[str], what: str, *, by_hand: str) -> None:
    """Run a command of the preparation; raise `PackageMissing` with its output if it fails."""
    done = _run(command)
    if done.returncode:
        raise PackageMissing(f"cannot {what}: {done.stdout.strip()}; {by_hand}")


def _unpack(package: str, command: Sequence[str], work: Path, by_hand: str) -> Path:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise PackageMissing(
                f"the tests need the package {package}, and this machine has no {tool} to fetch it; {by_hand}"
            )
    print(f"downloading the package {package} with apt", flush=True)
    unpacked = work / "unpacked"
    for archive in _download(package, command, work, by_hand):
        require_success(
            ["dpkg-deb", "--extract", str(archive), str(unpacked)], "unpack the package", by_hand=by_hand
        )
    return unpacked


def _download(package: str, command: Sequence[str], work: Path, by_hand: str) -> list[Path]:
    """Download with the lists that the machine has, else with lists of our own."""
    lists, cache = work / "lists", work / "cache"
    for directory in (lists / "partial", cache / "archives" / "partial"):
        directory.mkdir(parents=True)
    # The sandbox user of apt cannot write to our folder; root's downloads are verified all the same.
    apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "-o", f"Dir::Cache={cache}"]
    own = ["-o", f"Dir::State::Lists={lists}", "-o", "Acquire::Languages=none"]
    attempt = _run([*apt, *command], work)
    if attempt.returncode:
        # A source that does not answer is no reason to give up: the package may come from another one.
        update = _run([*apt, *own, "update"], work)
        attempt = _run([*apt, *own, *command], work)
        if attempt.returncode:
            output = f"{update.stdout}{attempt.stdout}".strip()
            raise PackageMissing(
                f"apt cannot download the package {package}:\n{output}\n"
                f"Check the network and the sources of apt (Ubuntu: the component universe), or {by_hand}."
            )
    return sorted([*work.glob("*.deb"), *(cache / "archives").glob("*.deb")])


def _run(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
