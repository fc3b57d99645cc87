"""The scripts that run the tests on other Pythons find what they name."""

import os
from pathlib import Path

import pytest

from scripts.debian_unstable import Unavailable, debian_unstable, read_sources
from scripts.other_pythons import LEFT_OUT, PART, ROOT, SUPPORTED

LINES = """
# deb http://commented.example/debian stable main
deb http://one.example/debian/ stable main  # the usual one
deb [arch=amd64 signed-by=/a/key.gpg] https://two.example/mirror/debian stable main
deb-src http://sources.example/debian stable main
"""
PARAGRAPHS = """
Types: deb deb-src
# http://commented.example/debian
URIs: http://three.example/debian
 http://one.example/debian
Suites: stable stable-updates

Types: deb-src
URIs: http://sources.example/debian
Suites: stable

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: stable
"""


def test_archives_are_read_from_both_formats_of_apt(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(LINES)
    (tmp_path / "sources.list.d" / "debian.sources").write_text(PARAGRAPHS)
    (tmp_path / "sources.list.d" / "old.list.disabled").write_text(
        "deb http://disabled.example/debian stable main"
    )
    assert read_sources(tmp_path) == [
        "http://one.example/debian",
        "https://two.example/mirror/debian",
        "http://three.example/debian",
    ]


def test_a_machine_without_apt_has_no_archives(tmp_path: Path) -> None:
    assert read_sources(tmp_path) == []


def test_an_ordinary_user_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    with (
        pytest.raises(Unavailable, match="need root; run `sudo make pythons`"),
        debian_unstable(tmp_path / "kept"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_tests_for_other_pythons_exist() -> None:
    named = [path.partition("::")[0] for path in (*PART, *LEFT_OUT)]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_supported_versions_are_those_of_the_classifiers() -> None:
    assert SUPPORTED == ["3.11", "3.12", "3.13", "3.14", "3.15"]
