"""The rule for the store: the code, MAINSPRING_URL, pyproject.toml, the default, in this order."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mainspring import EngineUnavailable, Mainspring
from mainspring.store_url import UrlSource, choose_store

FILE = '[tool.mainspring]\nurl = "sqlite:///from-file.db"\n'
VARIABLE = {"MAINSPRING_URL": "sqlite:///from-environment.db"}


@pytest.mark.parametrize(
    ("in_code", "environment", "file", "expected"),
    [
        ("memory://", VARIABLE, FILE, ("memory://", UrlSource.CODE)),
        (None, VARIABLE, FILE, ("sqlite:///from-environment.db", UrlSource.ENVIRONMENT)),
        (None, {}, FILE, ("sqlite:///{folder}/from-file.db", UrlSource.CONFIGURATION)),
        (None, {"MAINSPRING_URL": ""}, "[project]\n", ("sqlite:///mainspring.db", UrlSource.DEFAULT)),
    ],
)
def test_the_first_place_that_names_a_url_decides(
    tmp_path: Path,
    in_code: str | None,
    environment: dict[str, str],
    file: str,
    expected: tuple[str, UrlSource],
) -> None:
    (tmp_path / "pyproject.toml").write_text(file)
    below = tmp_path / "below"
    below.mkdir()
    choice = choose_store(in_code, environment, below)
    assert (choice.url, choice.source) == (expected[0].format(folder=tmp_path), expected[1])


def test_an_application_without_a_url_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAINSPRING_URL", "sqlite:///named.db")
    with Mainspring() as app:
        app.job(name="noted")(lambda: None).submit()
    assert (tmp_path / "named.db").exists()
    assert not (tmp_path / "mainspring.db").exists()


def test_a_url_that_names_no_store_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="redis://x"):
        choose_store(None, {"MAINSPRING_URL": "redis://x"}, tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.mainspring]\nurl = "sqlite:/shop.db"\n')
    with pytest.raises(EngineUnavailable, match=r"sqlite:/shop\.db"):
        choose_store(None, {}, tmp_path)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.mainspring")
    with pytest.raises(EngineUnavailable, match=r"pyproject.toml: the file cannot be read: .*; correct the file"):
        choose_store(None, {}, tmp_path)


def test_two_ways_to_write_one_path_are_no_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"MAINSPRING_URL": f"sqlite:///{tmp_path}/shop.db"}
    assert choose_store("sqlite:///shop.db", environment, tmp_path).conflict is None


def test_the_first_use_warns_once_that_the_environment_names_another_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MAINSPRING_URL", f"sqlite:///{tmp_path}/other.db")
    with Mainspring(f"sqlite:///{tmp_path}/shop.db") as app, caplog.at_level(logging.WARNING, "mainspring"):
        job = app.job(name="noted")(lambda: None)
        job.submit()
        job.submit()
        app.close()
        job.submit()
    (record,) = caplog.records
    assert record.getMessage() == (
        "the store in the code is used, not that of MAINSPRING_URL: the code names the store "
        f"sqlite:///{tmp_path}/shop.db, and MAINSPRING_URL names sqlite:///{tmp_path}/other.db; to end this "
        "warning, remove the URL from the code, or unset MAINSPRING_URL"
    )


def test_a_warning_shows_no_password(tmp_path: Path) -> None:
    environment = {"MAINSPRING_URL": "nats://user:s3cret@127.0.0.1:4222"}
    conflict = choose_store("memory://", environment, tmp_path).conflict
    assert conflict is not None
    assert "127.0.0.1:4222" in conflict
    assert "s3cret" not in conflict
    broken = choose_store("memory://", {"MAINSPRING_URL": "red://user:s3cret@host"}, tmp_path).conflict
    assert broken is not None
    assert "s3cret" not in broken


def test_an_option_of_a_command_is_no_conflict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MAINSPRING_URL", "memory://")
    app = Mainspring(f"sqlite:///{tmp_path}/shop.db")
    assert app.store_choice.unused_url == "memory://"
    app.use_store(f"sqlite:///{tmp_path}/other.db")
    chosen = app.store_choice
    assert chosen.source is UrlSource.OPTION
    assert chosen.conflict is None
