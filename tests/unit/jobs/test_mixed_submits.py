"""Submits of jobs of any types at once: order, conflicts, and the middleware around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mainspring import JobFunction, Mainspring, Middleware, Unique
from mainspring.errors import DuplicateJob, RefusedByStore
from mainspring.jobs.engine import Capability
from mainspring.jobs.middleware import Submit
from mainspring.jobs.submission import JobCall, MixedSubmit


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


def submit(app: Mainspring, *calls: tuple[JobFunction[Any, Any], Any], atomic: bool = False) -> MixedSubmit:
    submission = app.manager().submission
    prepared = (submission.prepare(JobCall(job.handler, job.chosen, (argument,), {})) for job, argument in calls)
    return submission.submit_mixed(prepared, atomic=atomic)


def test_jobs_are_stored_in_order_with_their_own_options(app: Mainspring) -> None:
    first = app.job(name="first", queue="a")(lambda n: None)
    second = app.job(name="second", queue="b")(lambda n: None)
    result = submit(app, (first.after(60), 1), (second.options(id="x", queue="c"), 2), (first, 3))
    assert (result.existing, result.failed) == (set(), {})
    jobs = list(app.jobs())
    assert [job.id for job in jobs] == result.ids
    assert [(job.type, job.queue, job.arguments) for job in jobs] == [
        ("first", "a", {"n": 1}),
        ("second", "c", {"n": 2}),
        ("first", "a", {"n": 3}),
    ]


def test_a_conflict_concerns_one_job_only(app: Mainspring) -> None:
    plain = app.job(name="plain")(lambda n: None)
    returns = plain.options(unique=Unique("k"))
    raises = plain.options(unique=Unique("k", on_conflict="raise"))
    result = submit(
        app, (returns, 1), (returns, 2), (raises, 3), (plain.options(id="x"), 4), (plain.options(id="x"), 5)
    )
    assert result.ids[0] == result.ids[1]
    assert (result.ids[2], result.ids[3], result.ids[4]) == (None, "x", None)
    assert result.existing == {1}
    errors = {
        place: error.existing_id for place, error in result.failed.items() if isinstance(error, DuplicateJob)
    }
    assert errors == {2: result.ids[0], 4: "x"}


def test_the_middleware_sees_each_type_and_queue_once_and_adds_headers(app: Mainspring) -> None:
    seen: list[Submit] = []

    class Mark(Middleware):
        @contextmanager
        def submitting(self, submit: Submit) -> Iterator[None]:
            submit.headers["mark"] = f"{submit.type} {submit.count}"
            yield
            seen.append(submit)

    app.middleware(Mark())
    one = app.job(name="one")(lambda n: None)
    two = app.job(name="two")(lambda n: None)
    result = submit(app, (one, 1), (two.options(headers={"own": "1"}), 2), (one, 3))
    assert {each.type: list(each.ids) for each in seen} == {
        "one": [result.ids[0], result.ids[2]],
        "two": [result.ids[1]],
    }
    assert [dict(job.headers) for job in app.jobs()] == [
        {"mark": "one 2"},
        {"mark": "two 1", "own": "1"},
        {"mark": "one 2"},
    ]


def test_an_engine_that_cannot_store_all_or_none_refuses(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    job = app.job(name="job")(lambda n: None)
    assert len(submit(app, (job, 1), (job, 2), atomic=True).ids) == 2
    engine = app.manager().engine
    others = engine.capabilities - {Capability.ATOMIC_BATCH}
    monkeypatch.setattr(type(engine), "capabilities", others)
    with pytest.raises(RefusedByStore, match="all or none"):
        submit(app, (job, 3), atomic=True)
    assert len(app.jobs()) == 2
