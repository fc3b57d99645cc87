"""How long an outage of another service jobs survive, with the default retry policy and with others."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainspring import Mainspring, Retry
from mainspring.jobs.timestamps import describe_duration
from mainspring.testing import time_travel

START = datetime(2026, 1, 5, 12, tzinfo=UTC)
OUTAGE = timedelta(minutes=5)
CALLS = 500
MANUAL = Path(__file__).parents[3] / "docs" / "jobs.md"
ROW = re.compile(r"^\| `(Retry\(.*?\))` \| (.+?) \| (.+?) \|$", re.MULTILINE)


def stage_outage(retry: Retry) -> dict[str, int]:
    """Run calls that are due evenly over an outage; return how many completed, and how many are dead letters."""
    with Mainspring("memory://", grace=0) as app, time_travel(app, start=START) as travel:

        @app.job(retry=retry)
        def call(_number: int) -> None:
            if travel.now < START + OUTAGE:
                raise TimeoutError("the provider does not answer")

        for number in range(CALLS):
            call.at(START + OUTAGE * number / CALLS).submit(number)
        travel.fast_forward(hours=2)
        return {status: count for status, count in app.counts().items() if count}


def test_the_default_loses_no_call_in_an_outage_of_five_minutes() -> None:
    assert stage_outage(Retry()) == {"COMPLETED": CALLS}


def test_the_table_of_the_document_gives_most_calls_up() -> None:
    counts = stage_outage(Retry(max_attempts=6, base=2, factor=2, max_delay=32, jitter=0))
    assert counts == {"COMPLETED": 103, "FAILED": 397}


@pytest.mark.parametrize(("policy", "survived", "given_up"), ROW.findall(MANUAL.read_text()))
def test_the_manual_says_how_long_an_outage_is_survived(policy: str, survived: str, given_up: str) -> None:
    retry: Retry = eval(policy, {"Retry": Retry})  # the text of the manual, written in this repository
    used = range(1, retry.max_attempts)
    shortest, longest = (sum(retry.delay_after(n, draw) or 0 for n in used) for draw in (lambda: 0.0, lambda: 1.0))
    assert (survived, given_up) == (describe_duration(shortest), describe_duration(longest))


def test_the_manual_begins_with_the_default() -> None:
    policies = [policy for policy, *_ in ROW.findall(MANUAL.read_text())]
    assert policies[0] == "Retry()"
