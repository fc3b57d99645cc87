"""Schedules over HTTP that recur too often are refused, whatever form they have."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mainspring import Cron, Every
from mainspring.security.http_limits import HttpLimits
from mainspring.web.problems import Refused
from mainspring.web.schedule_density import require_sparse

NOW = 1_795_000_000_000_000


@pytest.mark.parametrize(
    "rule",
    [
        Every(timedelta(seconds=1)),
        Every(timedelta(seconds=9.9)),
        Every(timedelta(milliseconds=1)),
        Cron("* * * * * *"),
        Cron("*/5 * * * * *"),
        Cron("0,9 * * * * *"),
        Cron("0,55 * * * * *"),  # five seconds from one minute to the next
        Cron("58,59 59 23 31 12 *"),  # twice a year
        Cron("0,1 0 0 29 2 *", tz="Asia/Taipei"),
    ],
    ids=repr,
)
def test_a_dense_schedule_is_refused(rule: Cron | Every) -> None:
    with pytest.raises(Refused, match=r"the least time over HTTP is 10 s") as caught:
        require_sparse(rule, NOW, HttpLimits())
    assert (caught.value.problem.status, caught.value.problem.type) == (422, "schedule-too-dense")


@pytest.mark.parametrize(
    "rule",
    [
        Every(timedelta(seconds=10)),
        Every(timedelta(days=365)),
        Cron("* * * * *"),
        Cron("*/10 * * * * *"),
        Cron("0,50 * * * * *"),
        Cron("0 2 * * *", tz="Europe/Berlin"),
        Cron("0 0 29 2 *"),
    ],
    ids=repr,
)
def test_other_schedules_are_accepted(rule: Cron | Every) -> None:
    require_sparse(rule, NOW, HttpLimits())


def test_the_least_time_can_be_chosen() -> None:
    require_sparse(Every(timedelta(seconds=1)), NOW, HttpLimits(schedule_seconds=1))
    with pytest.raises(Refused, match=r"are 60 s apart, the least time over HTTP is 3600 s"):
        require_sparse(Cron("* * * * *"), NOW, HttpLimits(schedule_seconds=3_600))
