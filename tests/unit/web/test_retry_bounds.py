"""The retry policies that callers of the API may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.security.http_limits import HttpLimits
from tests.api_site import ApiSite


@pytest.mark.parametrize(
    ("retry", "words"),
    [
        ({"max_attempts": 101}, "retry asks for 101 attempts, the limit of this server is 100"),
        ({"max_attempts": 1_000_000, "base": 0, "max_delay": 0}, "retry asks for 1,000,000 attempts"),
        ({"max_attempts": 2, "base": 0}, "retry asks for 0 s before the second attempt, the least of this server"),
        ({"base": 0.999}, "retry asks for 0.999 s before the second attempt"),
        ({"base": 60, "max_delay": 0.001}, "retry asks for 0.001 s before the second attempt"),
    ],
)
def test_a_retry_from_outside_is_bounded(site: ApiSite, retry: dict[str, Any], words: str) -> None:
    body = {"type": "shop.cancel_order", "arguments": {"order_id": 1}, "retry": retry}
    for answer in (site.post("/jobs", body), site.post("/jobs/batch", [{**body, "retry": None}, body])):
        assert (answer.status, answer.problem) == (422, "invalid-value")
        assert words in answer.json["detail"]
    assert site.app.counts()["PENDING"] == 0


@pytest.mark.parametrize(
    "retry", [{}, {"max_attempts": 100, "base": 1, "factor": 1}, {"max_attempts": 1, "base": 0}]
)
def test_a_retry_within_the_bounds_is_accepted(site: ApiSite, retry: dict[str, Any]) -> None:
    site.submit(retry=retry)


def test_the_operator_sets_the_bounds(site: ApiSite) -> None:
    site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(retry_attempts=1_000, retry_seconds=0.01))
    site.submit(retry={"max_attempts": 1_000, "base": 0.01})
