"""The progress bar of commands: it appears when the work takes longer than a second, and only on a terminal."""

from __future__ import annotations

import pytest

from mainspring.cli.progress import ProgressBar
from mainspring.testing import ManualClock


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


def test_work_that_ends_within_a_second_shows_no_bar(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    with ProgressBar("moving", total=2, clock=clock) as bar:
        bar.advance(1)
        clock.advance(0.999)
        bar.advance(1)
    assert capsys.readouterr() == ("", "")
    assert bar.done == 2


def test_longer_work_shows_its_count_and_the_time_left_on_stderr(
    terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    with ProgressBar("moving", total=3, clock=clock) as bar:
        bar.advance(1)
        clock.advance(1)
        bar.advance(1)
    output, errors = capsys.readouterr()
    assert output == ""
    assert "moving" in errors
    assert "2/3" in errors
    assert "left:" in errors


def test_a_file_gets_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    with ProgressBar("moving", total=2, clock=clock) as bar:
        clock.advance(60)
        bar.advance(1)
    assert capsys.readouterr() == ("", "")
