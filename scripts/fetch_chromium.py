"""Bring a headless Chromium for the tests of the dashboard: python -m scripts.fetch_chromium.

A Chromium or Chrome on PATH is used as it is. Otherwise the script unpacks the Debian package
`chromium-headless-shell`, with the libraries and fonts that this machine lacks, into `.chromium` of this checkout,
and writes a small program beside it that starts the browser with those libraries.

`ensure_fonts` brings the fonts of the pictures, so that they look the same on each machine. Tests do without.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.debian_packages import (
    PackageMissing,
    require_success,
    unpack_package,
    unpack_with_dependencies,
)

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
  <dir>{folder}/root/usr/share/fonts</dir>
  <dir>{folder}/fonts</dir>
  <cachedir>{folder}/cache</cachedir>
  <alias binding="strong"><family>system-ui</family><prefer>{sans}</prefer></alias>
  <alias><family>sans-serif</family><prefer>{sans}</prefer></alias>
  <alias><family>monospace</family><prefer>{mono}</prefer></alias>
</fontconfig>
"""
SANS = ("Inter", "DejaVu Sans", "Liberation Sans")
MONO = ("JetBrains Mono", "DejaVu Sans Mono", "Liberation Mono")
FONT_PACKAGES = ("fonts-inter", "fonts-jetbrains-mono")


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


def ensure_fonts(folder: Path = FOLDER) -> Path:
    """Bring the fonts of the pictures, unless they are there; return the configuration that names them."""
    for package in FONT_PACKAGES:
        fonts = folder / "fonts" / package
        if not fonts.exists():
            fonts.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                unpacked = unpack_package(package, Path(temporary), by_hand=f"install the package {package}")
                (unpacked / "usr" / "share" / "fonts").rename(fonts)
    return _write_font_configuration(folder)


def _write_font_configuration(folder: Path) -> Path:
    """Write which fonts the browser uses for the generic families."""
    path = folder / "fonts.conf"
    families = {"sans": SANS, "mono": MONO}
    names = {kind: "".join(f"<family>{name}</family>" for name in found) for kind, found in families.items()}
    path.write_text(FONTS.format(folder=folder, **names))
    return path


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
    _write_font_configuration(starter.parent)
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
