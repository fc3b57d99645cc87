"""`app.remote_job`: job types whose handlers run elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import InvalidArguments, Mainspring, Retry, Unique
from mainspring.engines.nats.workers import HeartbeatEntry, HeartbeatRecord, SilenceWatch
from mainspring.jobs.records import RemoteTerms
from mainspring.testing import time_travel


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


def test_it_submits_any_named_arguments_as_they_are(app: Mainspring) -> None:
    resize = app.remote_job("resize", queue="images")
    handle = resize.submit(file="cat.png", sizes=[1, {"w": 2}], deep=None)
    info = app.get(handle.id)
    assert (info.type, info.queue) == ("resize", "images")
    assert info.arguments == {"file": "cat.png", "sizes": [1, {"w": 2}], "deep": None}
    resize.submit_many([{"file": "a"}, {}])
    assert app.counts()["PENDING"] == 3
    assert [each.arguments for each in app.jobs(arguments={"file": "a"})] == [{"file": "a"}]


@pytest.mark.parametrize(
    "value", [(1, 2), {1: 2}, {1, 2}, datetime(2026, 1, 1, tzinfo=UTC), object(), float("nan")]
)
def test_it_refuses_a_value_that_the_worker_would_not_get_as_it_is(app: Mainspring, value: Any) -> None:
    with pytest.raises(InvalidArguments) as refused:
        app.remote_job("resize").submit(value=value)
    assert refused.value.parameter == "value"


def test_it_refuses_arguments_without_names(app: Mainspring) -> None:
    resize = app.remote_job("resize")
    with pytest.raises(InvalidArguments, match="pass arguments by name"):
        resize.submit("cat.png")
    with pytest.raises(InvalidArguments, match="pass arguments by name"):
        resize.submit_many([("cat.png",)])


def test_a_signature_checks_arguments(app: Mainspring) -> None:
    def parameters(file: str, width: int = 100) -> None: ...

    resize = app.remote_job("resize", signature=parameters, search="file")
    assert app.get(resize.submit("cat.png").id).arguments == {"file": "cat.png"}
    with pytest.raises(InvalidArguments):
        resize.submit(file=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no parameter 'size'"):
        app.remote_job("other", signature=parameters, search="size")


def test_it_cannot_be_called_and_its_retry_knows_no_classes(app: Mainspring) -> None:
    resize = app.remote_job("resize")
    with pytest.raises(TypeError, match="runs in a remote worker"):
        resize(file="cat.png")
    with pytest.raises(ValueError, match='"retry": false'):
        app.remote_job("other", retry=Retry(on=(ValueError,)))


def test_a_name_that_a_handler_has_is_refused(app: Mainspring) -> None:
    @app.job(name="resize")
    def handler() -> None: ...

    with pytest.raises(ValueError, match="two handlers are named 'resize'"):
        app.remote_job("resize")


def test_keys_are_made_of_all_given_arguments_or_of_some(app: Mainspring) -> None:
    every = app.remote_job("every", unique=Unique())
    assert every.submit(a=1, b=2).id == every.submit(b=2, a=1).id != every.submit(a=1).id
    some = app.remote_job("some", unique=Unique(by="a"))
    assert some.submit(a=1, b=2).id == some.submit(a=1).id


def test_schedules_follow_ups_and_time_travel_leave_its_jobs_pending() -> None:
    app = Mainspring("memory://")
    resize = app.remote_job("resize")

    @app.job(then=resize.bind(width=7))
    def upload() -> str:
        return "cat.png"

    app.every(60, name="nightly")(resize)
    with time_travel(app, start=datetime(2026, 1, 5, 12, tzinfo=UTC)) as travel:
        upload.submit()
        travel.fast_forward(minutes=1)
        found = {str(info.status) for info in app.jobs(type="resize")}
        assert found == {"PENDING"}
        assert {"width": 7} in [info.arguments for info in app.jobs(type="resize")]
        explained = app.explain(next(iter(app.jobs(type="resize"))).id)
        assert explained.reason == "no remote worker"


def test_a_remote_worker_on_nats_is_silent_after_its_lease_as_a_process_has_seen_it() -> None:
    now = [0]
    watch = SilenceWatch(lambda: now[0])
    record = HeartbeatRecord("w", 0, ("resize",), 1, remote=RemoteTerms("token 1", 3_000))
    others = {
        1: HeartbeatEntry(HeartbeatRecord("local", 1, ("ping",), 1), 1),
        2: HeartbeatEntry(HeartbeatRecord("left", 0, (), 0, has_left=True, remote=record.remote), 1),
    }

    def check(passed: int, revision: int) -> list[int]:
        now[0] += passed
        return watch.find_silent({**others, 7: HeartbeatEntry(record, revision)})

    assert [check(passed, 5) for passed in (9_000, 1_000, 1_000, 999)] == [[], [], [], []]
    assert check(1_000, 6) == [], "a heartbeat has come"
    assert [check(9_000, 6) for _ in range(3)] == [[], [], [7]], "a third of a lease counts of a long pause"
