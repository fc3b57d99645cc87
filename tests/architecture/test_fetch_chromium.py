"""The script that brings Chromium for the tests uses a browser on PATH, else unpacks Debian's headless shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.debian_packages import PackageMissing
from scripts.fetch_chromium import FONT_PACKAGES, ensure, ensure_fonts


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in PATH, with a shell, an apt-get that downloads one package and nothing else."""
    folder = tmp_path / "path"
    folder.mkdir()
    for name in ("sh", "mkdir", "cp", "dirname", "readlink"):
        program = shutil.which(name)
        assert program is not None
        (folder / name).symlink_to(program)
    write_program(folder / "apt-get", f'echo "$*" >> {folder}/calls; echo > chromium_1.deb')
    monkeypatch.setenv("PATH", str(folder))
    return folder


def write_package(path: Path, program: str) -> None:
    """Write a dpkg-deb that unpacks a browser and a library."""
    write_program(path / "shell", program)
    unpack = f'''mkdir -p "$3/usr/lib/chromium" "$3/usr/lib/here"
cp {path}/shell "$3/usr/lib/chromium/chromium-headless-shell"
echo > "$3/usr/lib/here/libsomething.so.1"'''
    write_program(path / "dpkg-deb", unpack)


@pytest.mark.parametrize("name", ["chromium", "google-chrome"])
def test_a_browser_on_path_is_used(path: Path, tmp_path: Path, name: str) -> None:
    write_program(path / name, "exit 0")
    assert ensure(tmp_path / "fetched") == path / name
    assert not (tmp_path / "fetched").exists()


def test_the_browser_is_unpacked_once_and_starts_with_the_unpacked_libraries(path: Path, tmp_path: Path) -> None:
    write_package(path, 'echo "$LD_LIBRARY_PATH $*"')
    browser = ensure(tmp_path / "fetched")
    assert ensure(tmp_path / "fetched") == browser
    (call,) = (path / "calls").read_text().splitlines()
    assert "--download-only" in call
    output = subprocess.run([browser, "--version"], capture_output=True, check=True, text=True).stdout
    assert output == f"{tmp_path}/fetched/root/usr/lib/here --version\n"


def test_a_browser_that_does_not_run_is_not_kept(path: Path, tmp_path: Path) -> None:
    write_package(path, "echo no memory; exit 1")
    with pytest.raises(PackageMissing, match=r"cannot run Chromium: no memory; put `chromium` or"):
        ensure(tmp_path / "fetched")
    assert not (tmp_path / "fetched" / "browser").exists()


def test_the_fonts_of_pictures_are_unpacked_once_and_are_those_of_the_generic_families(
    path: Path, tmp_path: Path
) -> None:
    write_program(path / "dpkg-deb", 'mkdir -p "$3/usr/share/fonts/here"')
    folder = tmp_path / "fetched"
    configuration = ensure_fonts(folder)
    assert ensure_fonts(folder) == configuration
    assert len((path / "calls").read_text().splitlines()) == len(FONT_PACKAGES)
    assert [(folder / "fonts" / package / "here").is_dir() for package in FONT_PACKAGES] == [True, True]
    text = configuration.read_text()
    assert f"<dir>{folder}/fonts</dir>" in text
    assert "<family>sans-serif</family><prefer><family>Inter</family>" in text
