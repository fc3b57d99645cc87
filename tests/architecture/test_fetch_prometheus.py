"""The script that brings Prometheus for the tests says what is missing, and downloads once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts.debian_packages import PackageMissing
from scripts.fetch_prometheus import PrometheusTools, copy_programs, ensure

PROGRAM = "#!/bin/sh\nexit 0\n"


def write_program(path: Path, text: str = PROGRAM) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in PATH, with a shell and nothing else."""
    folder = tmp_path / "path"
    folder.mkdir()
    for name in ("sh", "mkdir", "cp"):
        program = shutil.which(name)
        assert program is not None
        (folder / name).symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def write_apt(path: Path, download: str) -> None:
    """Write an apt-get that records its calls, and a dpkg-deb that unpacks two programs."""
    log = path / "calls"
    write_program(path / "apt-get", f'#!/bin/sh\necho "$*" >> {log}\n{download}\n')
    write_program(path / "program")
    unpack = (
        f'mkdir -p "$3/usr/bin"\nfor name in prometheus promtool; do cp {path}/program "$3/usr/bin/$name"; done'
    )
    write_program(path / "dpkg-deb", f"#!/bin/sh\n{unpack}\n")


def test_programs_on_path_are_used(path: Path, tmp_path: Path) -> None:
    for name in ("prometheus", "promtool"):
        write_program(path / name)
    tools = ensure(tmp_path / "fetched")
    assert tools == PrometheusTools(prometheus=path / "prometheus", promtool=path / "promtool")
    assert not (tmp_path / "fetched").exists()


def test_a_machine_without_apt_is_told_what_to_install(path: Path, tmp_path: Path) -> None:
    with pytest.raises(PackageMissing, match=r"no apt-get to fetch it; put `prometheus` and `promtool` on PATH"):
        ensure(tmp_path / "fetched")


def test_the_package_is_downloaded_once(path: Path, tmp_path: Path) -> None:
    write_apt(path, "echo > prometheus_1.deb")
    tools = ensure(tmp_path / "fetched")
    assert tools.promtool.read_text() == PROGRAM
    assert ensure(tmp_path / "fetched") == tools
    assert len((path / "calls").read_text().splitlines()) == 1
    assert sorted(entry.name for entry in (tmp_path / "fetched").iterdir()) == ["bin", "lock"]


def test_without_package_lists_apt_gets_lists_of_its_own(path: Path, tmp_path: Path) -> None:
    write_apt(path, 'case "$*" in *update) echo > updated;; *) [ -e updated ] && echo > prometheus_1.deb;; esac')
    ensure(tmp_path / "fetched")
    download, update, again = (path / "calls").read_text().splitlines()
    assert "Dir::State::Lists" not in download
    assert str(tmp_path / "fetched") in update
    assert update.removesuffix("update") == again.removesuffix("download prometheus")


def test_a_failed_download_shows_the_output_of_apt_and_leaves_nothing(path: Path, tmp_path: Path) -> None:
    write_apt(path, "echo the mirror is down; exit 100")
    with pytest.raises(PackageMissing, match=r"(?s)the mirror is down.*Check the network.*on PATH"):
        ensure(tmp_path / "fetched")
    assert [entry.name for entry in (tmp_path / "fetched").iterdir()] == ["lock"]


def test_another_checkout_gets_copies(path: Path, tmp_path: Path) -> None:
    for name in ("prometheus", "promtool"):
        write_program(path / name)
    copy_programs(tmp_path / "checkout")
    (path / "promtool").unlink()
    assert ensure(tmp_path / "checkout" / ".prometheus").promtool.read_text() == PROGRAM
