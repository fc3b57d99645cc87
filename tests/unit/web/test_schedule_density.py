"""Schedules over HTTP that recur too often are refused, whatever form they have."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Cron, Every
from mainspring.security.http_limits import HttpLimits
from mainspring.web.problems import Refused
from mainspring.web.schedule_density import rate_of, require_sparse
from tests.api_site import ApiSite
from tests.asgi_client import Answer

NOW = 1_795_000_000_000_000
EVERY_MINUTE: dict[str, Any] = {"kind": "every", "interval": 60}


def put(site: ApiSite, name: str, rule: dict[str, Any] = EVERY_MINUTE, token: str | None = None) -> Answer:
    body = {"type": "shop.cancel_order", "arguments": {"order_id": 1}, "rule": rule}
    return site.post(f"/schedules/{name}", body, method="PUT", token=token)


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


@pytest.mark.parametrize(
    ("rule", "rate"),
    [
        (Every(timedelta(seconds=10)), 0.1),
        (Cron("*/30 * * * * *"), 1 / 30),
        (Cron("0 2 * * *"), 1 / 86_400),
        (Cron("* * * * *"), 1 / 60),
    ],
)
def test_the_rate_of_a_schedule(rule: Cron | Every, rate: float) -> None:
    assert rate_of(rule, NOW) == pytest.approx(rate)


def test_one_token_stores_only_so_many_schedules(site: ApiSite) -> None:
    site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(caller_schedules=2))
    ping = site.app.job(name="ping")(lambda: None)
    site.app.schedules.put("own", ping, "0 2 * * *")
    assert [put(site, name).status for name in ("a", "b", "a")] == [201, 201, 200], "a change is no new schedule"
    refused = put(site, "c")
    assert (refused.status, refused.problem) == (429, "too-many-schedules")
    other = site.token("operate")
    assert put(site, "c", token=other).status == 201
    changed = put(site, "a", {"kind": "every", "interval": 90}, token=other)
    assert changed.status == 200, "the schedule belongs to the caller that changed it last"
    assert put(site, "d").status == 201
    assert site.post("/schedules/d", method="DELETE").status == 200
    assert put(site, "e").status == 201


def test_schedules_that_are_stored_at_the_same_time_are_counted(site: ApiSite) -> None:
    site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(caller_schedules=3))
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: put(site, f"s{number}"), range(24)))
    assert sum(answer.status == 201 for answer in answers) <= 3
    assert len(site.app.schedules.list()) <= 3


def test_the_schedules_of_a_token_make_no_more_jobs_than_it_may_submit(site: ApiSite) -> None:
    site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(submit_rate=0.05))
    every_half = {"kind": "every", "interval": 30}
    assert put(site, "a", every_half).status == 201
    refused = put(site, "b", every_half)
    assert (refused.status, refused.problem) == (429, "submit-rate")
    assert "0.0667 jobs per second" in refused.json["detail"]
    assert put(site, "a", {"kind": "every", "interval": 60}).status == 200
    assert put(site, "b", every_half).status == 201


def test_storing_and_triggering_a_schedule_count_as_submits(site: ApiSite) -> None:
    site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(submit_rate=0.02, submit_burst=2, max_batch=1))
    assert put(site, "a").headers["ratelimit"].startswith('"submits";r=1')
    assert site.post("/schedules/a/trigger").status == 201
    for refused in (site.post("/schedules/a/trigger"), put(site, "a", {"kind": "every", "interval": 90})):
        assert (refused.status, refused.problem) == (429, "submit-rate")
    assert site.app.counts()["PENDING"] == 1
