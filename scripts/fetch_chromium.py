"""Bring a headless Chromium for the tests of the dashboard: python -m scripts.fetch_chromium.

A Chromium or Chrome on PATH is used as it is. Otherwise the script unpacks the Debian package
`chromium-headless-shell`, with the libraries and fonts that this machine lacks, into `.chromium` of this checkout,
and writes a small program beside it that starts the browser with those libraries.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.debian_packages import PackageMissing, require_success, unpack_with_dependencies

FOLDER = Path(__file__).parents[1] / ".chromium"
PACKAGE = "chromium-headless-shell"
ON_PATH = (PACKAGE, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BY_HAND = "put `chromium` or `google-chrome` on PATH"

STARTER = """#!/bin/sh
# Start the unpacked browser with the libraries and fonts that were unpacked with it.
root=$(dirname "$(readlink -f "$0")")/root
export LD_LIBRARY_PATH="{libraries}"
export FONTCONFIG_FILE="$root/../fonts.conf"
exec "{program}" "$@"
"""
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>{root}/usr/share/fonts</dir>
  <cachedir>{root}/var/cache/fontconfig</cachedir>
</fontconfig>
"""


def ensure(folder: Path = FOLDER) -> Path:
    """Return the program of the browser; download it first if neither PATH nor the folder has one."""
    for name in ON_PATH:
        if (program := shutil.which(name)) is not None:
            return Path(program)
    starter = folder / "browser"
    if not starter.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:  # of several test processes, one downloads
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not starter.exists():
                _download(starter)
    return starter


def _download(starter: Path) -> None:
    root = starter.parent / "root"
    shutil.rmtree(root, ignore_errors=True)  # of a download that was interrupted
    with tempfile.TemporaryDirectory(dir=starter.parent) as temporary:
        unpacked = unpack_with_dependencies(PACKAGE, Path(temporary), by_hand=BY_HAND)
        unpacked.rename(root)
    program = Path("usr", "lib", "chromium", PACKAGE)
    if not (root / program).exists():
        raise PackageMissing(f"the package {PACKAGE} has no {program}; {BY_HAND}")
    folders = sorted({library.parent.relative_to(root) for library in root.rglob("*.so*")})
    libraries = ":".join(f"$root/{folder}" for folder in folders)
    (starter.parent / "fonts.conf").write_text(FONTS.format(root=root))
    beside = starter.with_name("browser.new")
    beside.write_text(STARTER.format(libraries=libraries, program=f"$root/{program}"))
    beside.chmod(0o755)
    require_success(
        [str(beside), "--no-sandbox", "--disable-dev-shm-usage", "--dump-dom", "about:blank"],
        "run Chromium",
        by_hand=BY_HAND,
    )
    beside.rename(starter)  # complete, or not there


if __name__ == "__main__":
    try:
        ensure()
    except PackageMissing as problem:
        sys.exit(str(problem))
