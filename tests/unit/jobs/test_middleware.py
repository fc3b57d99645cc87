"""Middleware around attempts: in order, on every kind of invoker, and able to fail an attempt."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import Cancel, JobContext, JobStatus, Mainspring, Snooze, current_job
from mainspring.jobs.context import current_batch
from mainspring.jobs.job_policies import PREDECESSOR
from mainspring.jobs.middleware import AttemptEnd, Middleware, Middlewares, Submit
from mainspring.jobs.processes.messages import AnswerKind, ChildAnswer
from mainspring.jobs.records import FollowUp, Outcome, OutcomeKind
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.timestamps import to_datetime
from mainspring.jobs.worker.invoker import HandlerInvoker
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.jobs.worker.outcomes import ProcessCrashed, ProcessInterrupted, RemoteError
from mainspring.testing import time_travel
from tests.support import PATIENCE
from tests.unit.jobs.leases import make_lease, make_leased_job

NOW = 1_900_000_000_000_000


class Watching(Middleware):
    """Writes down what it sees."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name = name
        self._seen = seen

    @contextmanager
    def attempting(self, job: JobContext) -> Iterator[None]:
        self._seen.append(f"{self._name} before {job.id}")
        try:
            yield
        except BaseException as error:
            self._seen.append(f"{self._name} saw {type(error).__name__}")
            raise
        self._seen.append(f"{self._name} after")


class Failing(Middleware):
    """Raises, before or after."""

    def __init__(self, when: str) -> None:
        self._when = when

    @contextmanager
    def attempting(self, job: JobContext) -> Iterator[None]:
        if self._when == "before":
            raise PermissionError("not now")
        yield
        raise PermissionError("not now")


class Forgiving(Middleware):
    """Swallows what a handler raises."""

    @contextmanager
    def attempting(self, job: JobContext) -> Iterator[None]:
        with suppress(ValueError, RemoteError):
            yield


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def middlewares() -> Middlewares:
    return Middlewares()


@pytest.fixture
def invoker(middlewares: Middlewares) -> HandlerInvoker:
    return HandlerInvoker(JsonSerializer(), lambda: NOW, max_result=1_000, middlewares=middlewares)


def plainly(invoker: HandlerInvoker, function: Callable[[], Any]) -> Outcome:
    return invoker.invoke(make_leased_job(function))


def on_a_loop(invoker: HandlerInvoker, function: Callable[[], Any]) -> Outcome:
    async def handler() -> Any:
        await asyncio.sleep(0)
        return function()

    return asyncio.run(invoker.invoke_async(make_leased_job(handler)))


def as_a_batch(invoker: HandlerInvoker, function: Callable[[], Any]) -> Outcome:
    def handler(items: list[int]) -> Any:
        value = function()
        return [value for _ in items]

    (outcome,) = invoker.invoke_batch([make_leased_job(handler, make_lease(b'{"items":1}'), batch=9)])
    return outcome


def as_a_batch_on_a_loop(invoker: HandlerInvoker, function: Callable[[], Any]) -> Outcome:
    async def handler(items: list[int]) -> Any:
        await asyncio.sleep(0)
        value = function()
        return [value for _ in items]

    job = make_leased_job(handler, make_lease(b'{"items":1}'), batch=9)
    (outcome,) = asyncio.run(invoker.invoke_batch_async([job]))
    return outcome


def beside_a_process(invoker: HandlerInvoker, function: Callable[[], Any]) -> Outcome:
    def ask(_passed: dict[str, str] | None) -> list[ChildAnswer]:
        try:
            return [ChildAnswer(AnswerKind.COMPLETED, result=JsonSerializer().encode(function()))]
        except ValueError as error:
            return [ChildAnswer(AnswerKind.FAILED, error=f"ValueError: {error}")]

    (outcome,) = invoker.invoke_remote([make_leased_job(lambda: None)], ask)
    return outcome


KINDS = [plainly, on_a_loop, as_a_batch, as_a_batch_on_a_loop, beside_a_process]

Run = Callable[[HandlerInvoker, Callable[[], Any]], Outcome]


def fail() -> None:
    raise ValueError("no")


@pytest.mark.parametrize("run", KINDS)
def test_middleware_is_around_the_handler_the_first_outermost(
    invoker: HandlerInvoker, middlewares: Middlewares, seen: list[str], run: Run
) -> None:
    middlewares.add(Watching("first", seen))
    middlewares.add(Watching("second", seen))

    def handler() -> int:
        seen.append("handler")
        return 7

    outcome = run(invoker, handler)
    assert (outcome.kind, outcome.result) == (OutcomeKind.COMPLETED, b"7")
    assert seen == [
        "first before order-42",
        "second before order-42",
        "handler",
        "second after",
        "first after",
    ]


@pytest.mark.parametrize("run", KINDS)
def test_middleware_sees_what_the_handler_raises(
    invoker: HandlerInvoker, middlewares: Middlewares, seen: list[str], run: Run
) -> None:
    middlewares.add(Watching("it", seen))
    outcome = run(invoker, fail)
    error = RemoteError if run is beside_a_process else ValueError
    assert outcome.kind is OutcomeKind.RETRY
    assert (outcome.error or "").startswith("ValueError: no")
    assert seen == ["it before order-42", f"it saw {error.__name__}"]


@pytest.mark.parametrize("run", KINDS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_middleware_raises_fails_the_attempt(
    invoker: HandlerInvoker, middlewares: Middlewares, seen: list[str], run: Run, when: str
) -> None:
    middlewares.add(Failing(when))
    outcome = run(invoker, lambda: seen.append("handler"))
    assert outcome.kind is OutcomeKind.RETRY
    assert (outcome.error or "").startswith("PermissionError: not now")
    assert seen == ([] if when == "before" else ["handler"])


@pytest.mark.parametrize("run", KINDS)
def test_an_error_that_middleware_swallows_is_none(
    invoker: HandlerInvoker, middlewares: Middlewares, run: Run
) -> None:
    middlewares.add(Forgiving())
    outcome = run(invoker, fail)
    assert (outcome.kind, outcome.result) == (OutcomeKind.COMPLETED, None)


def test_middleware_that_is_added_later_counts(
    invoker: HandlerInvoker, middlewares: Middlewares, seen: list[str]
) -> None:
    plainly(invoker, lambda: None)
    middlewares.add(Watching("late", seen))
    plainly(invoker, lambda: None)
    assert seen == ["late before order-42", "late after"]


def test_middleware_may_await_around_coroutines(invoker: HandlerInvoker, middlewares: Middlewares) -> None:
    seen: list[str] = []

    class Waiting(Middleware):
        @asynccontextmanager
        async def attempting_async(self, job: JobContext) -> AsyncIterator[None]:
            await asyncio.sleep(0)
            seen.append(job.id)
            yield
            await asyncio.sleep(0)
            seen.append("after")

    middlewares.add(Waiting())
    on_a_loop(invoker, lambda: seen.append("handler"))
    assert seen == ["order-42", "handler", "after"]


def test_middleware_is_inside_of_the_job_that_it_is_about(
    invoker: HandlerInvoker, middlewares: Middlewares
) -> None:
    ids: list[str] = []

    class Asking(Middleware):
        @contextmanager
        def attempting(self, job: JobContext) -> Iterator[None]:
            ids.append(current_job().id)
            yield

    middlewares.add(Asking())
    plainly(invoker, lambda: None)
    assert ids == ["order-42"]


@pytest.mark.parametrize("kind", ["here", "in a process"])
def test_middleware_is_around_a_batch_once_and_sees_all_its_jobs(
    invoker: HandlerInvoker, middlewares: Middlewares, kind: str
) -> None:
    seen: list[tuple[JobContext, ...]] = []

    class Asking(Middleware):
        @contextmanager
        def attempting(self, job: JobContext) -> Iterator[None]:
            assert job is current_batch()[0]
            seen.append(current_batch())
            yield

    def handler(items: list[int]) -> None: ...

    middlewares.add(Asking())
    jobs: list[LeasedJob] = [make_leased_job(handler, make_lease(b'{"items":1}'), batch=9) for _ in range(3)]
    if kind == "here":
        invoker.invoke_batch(jobs)
    else:
        invoker.invoke_remote(jobs, lambda _passed: [ChildAnswer(AnswerKind.COMPLETED)] * 3)
    assert seen == [tuple(job.context for job in jobs)]


# -- how attempts ended


class Learning(Middleware):
    """Keeps the ends of attempts."""

    def __init__(self) -> None:
        self.ends: list[AttemptEnd] = []

    def attempted(self, ends: Sequence[AttemptEnd]) -> None:
        self.ends += ends
        for end in ends:
            if end.follow_up_headers is not None:
                end.follow_up_headers["cause"] = end.job.id


@pytest.fixture
def learning(middlewares: Middlewares) -> Learning:
    middleware = Learning()
    middlewares.add(middleware)
    return middleware


@pytest.mark.parametrize("run", KINDS)
def test_middleware_learns_that_an_attempt_completed(
    invoker: HandlerInvoker, learning: Learning, run: Run
) -> None:
    run(invoker, lambda: 7)
    (end,) = learning.ends
    assert (end.job.id, end.outcome, end.status) == ("order-42", "completed", JobStatus.COMPLETED)
    assert (end.error, end.error_type, end.error_text, end.due) == (None, None, None, None)


@pytest.mark.parametrize("run", KINDS)
def test_middleware_learns_how_an_attempt_failed(invoker: HandlerInvoker, learning: Learning, run: Run) -> None:
    outcome = run(invoker, fail)
    (end,) = learning.ends
    assert (end.outcome, end.status) == ("failed", JobStatus.PENDING)
    assert isinstance(end.error, RemoteError if run is beside_a_process else ValueError)
    assert (end.error_text or "").startswith("ValueError: no")
    assert outcome.due is not None
    assert end.due == to_datetime(outcome.due)


def test_the_type_of_an_error_has_its_module_unless_it_is_a_builtin_and_may_be_remote(
    invoker: HandlerInvoker, learning: Learning
) -> None:
    class Refused(Exception):
        pass

    def refuse() -> None:
        raise Refused

    for function in (fail, refuse):
        plainly(invoker, function)
    answer = ChildAnswer(AnswerKind.FAILED, error="KeyError: 7", class_names=("builtins.KeyError",))
    invoker.invoke_remote([make_leased_job(lambda: None)], lambda _passed: [answer])
    first, second, third = (end.error_type for end in learning.ends)
    assert (first, third) == ("ValueError", "KeyError")
    assert (second or "").endswith(".Refused")
    assert (second or "").startswith(f"{__name__}.")


@pytest.mark.parametrize(
    ("raised", "outcome", "status"),
    [
        (Snooze(1), "snoozed", JobStatus.PENDING),
        (Cancel("no"), "canceled", JobStatus.CANCELED),
        (ProcessCrashed("gone"), "crashed", JobStatus.PENDING),
        (ProcessInterrupted("stopped"), "interrupted", JobStatus.PENDING),
    ],
)
def test_other_ends_of_attempts(
    invoker: HandlerInvoker, learning: Learning, raised: Exception, outcome: str, status: JobStatus
) -> None:
    def handler() -> None:
        raise raised

    plainly(invoker, handler)
    (end,) = learning.ends
    assert (end.outcome, end.status) == (outcome, status)


def test_an_attempt_that_a_shutdown_has_interrupted_ends_so_whatever_the_handler_does_later(
    invoker: HandlerInvoker, learning: Learning
) -> None:
    job = make_leased_job(lambda: None)
    assert job.claim_end()
    invoker.invoke(job)
    assert [(end.outcome, end.status) for end in learning.ends] == [("interrupted", JobStatus.PENDING)]


def test_headers_that_middleware_sets_at_the_end_are_those_of_the_follow_up_job(
    invoker: HandlerInvoker, learning: Learning
) -> None:
    plan = FollowUp("after", "default", 1)
    lease = replace(make_lease(), follow_up=plan, headers={"user": "7"})
    outcome = invoker.invoke(make_leased_job(lambda: None, lease))
    assert outcome.follow_up is not None
    assert outcome.follow_up.headers == {"user": "7", "cause": "order-42", PREDECESSOR: "order-42"}
    assert lease.headers == {"user": "7"}


def test_what_middleware_raises_at_the_end_is_logged_and_changes_nothing(
    invoker: HandlerInvoker, middlewares: Middlewares, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Middleware):
        def attempted(self, ends: Sequence[AttemptEnd]) -> None:
            raise KeyError("lost")

    middlewares.add(Broken())
    learning = Learning()
    middlewares.add(learning)
    assert plainly(invoker, lambda: 7).kind is OutcomeKind.COMPLETED
    assert len(learning.ends) == 1
    (record,) = caplog.records
    assert "failed in attempted()" in record.getMessage()
    assert record.__dict__["job"] == "order-42"


# -- child processes, schedules and submits


def test_middleware_passes_texts_to_a_child_process(invoker: HandlerInvoker, middlewares: Middlewares) -> None:
    class Passing(Middleware):
        def calling_child(self, job: JobContext, passed: dict[str, str]) -> None:
            passed["of"] = job.id

    given: list[dict[str, str] | None] = []

    def ask(passed: dict[str, str] | None) -> list[ChildAnswer]:
        given.append(passed)
        return [ChildAnswer(AnswerKind.COMPLETED)]

    invoker.invoke_remote([make_leased_job(lambda: None)], ask)
    middlewares.add(Passing())
    invoker.invoke_remote([make_leased_job(lambda: None)], ask)
    assert given == [None, {"of": "order-42"}]


class Scheduling(Middleware):
    """Adds a header to the jobs of schedules, and keeps the submits; fails where it is told to."""

    def __init__(self, fails: str = "") -> None:
        self.submits: list[Submit] = []
        self._fails = fails

    @contextmanager
    def scheduling(self, submit: Submit) -> Iterator[None]:
        if self._fails == "before":
            raise KeyError("before")
        submit.headers["cause"] = submit.schedule or ""
        yield
        self.submits.append(submit)
        if self._fails == "after":
            raise KeyError("after")


@pytest.mark.parametrize("fails", ["", "before", "after"])
def test_middleware_is_around_the_firing_of_a_schedule_and_cannot_prevent_it(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Mainspring("memory://")
    middleware = app.middleware(Scheduling(fails))
    seen: list[str | None] = []

    @app.cron("0 13 * * *", name="daily")
    def report() -> None:
        seen.append(current_job().headers.get("cause"))

    with time_travel(app, start=datetime(2026, 1, 5, 12, tzinfo=UTC)) as travel:
        travel.fast_forward(hours=2)
    assert seen == [None if fails == "before" else "daily"]
    if fails != "before":
        (submit,) = middleware.submits
        assert (submit.schedule, submit.type, submit.queue, submit.count) == ("daily", report.name, "default", 1)
        assert len(submit.ids) == 1
    assert [record.levelname for record in caplog.records] == (["ERROR"] if fails else [])


def test_a_submit_has_the_ids_of_its_jobs_when_they_are_stored() -> None:
    submits: list[tuple[Submit, tuple[str, ...]]] = []

    class Watching(Middleware):
        @contextmanager
        def submitting(self, submit: Submit) -> Iterator[None]:
            before = tuple(submit.ids)
            yield
            submits.append((submit, before))

    with Mainspring("memory://") as app:
        app.middleware(Watching())

        @app.job(unique="once")
        def single() -> None: ...

        @app.job
        def many(number: int) -> None: ...

        first = single.submit()
        assert single.submit().id == first.id
        ids = many.submit_many([(1,), (2,)])
    assert [(list(submit.ids), submit.is_bulk, submit.schedule) for submit, _ in submits] == [
        ([first.id], False, None),
        ([first.id], False, None),
        (ids, True, None),
    ]
    assert [before for _, before in submits] == [(), (), ()]


# -- the context of an attempt


def test_an_attempt_has_no_context_variables_of_the_submitter_or_of_an_earlier_attempt() -> None:
    user: ContextVar[str] = ContextVar("user", default="")

    def ask() -> str:
        before = user.get()
        user.set("an earlier attempt")
        return before

    with Mainspring("memory://", threads=1, coroutines=1) as app:

        @app.job
        def plain() -> str:
            return ask()

        @app.job
        async def coroutine() -> str:
            await asyncio.sleep(0)
            return ask()

        @app.job(batch=1)
        def batch(items: list[int]) -> list[str]:
            return [ask() for _ in items]

        user.set("the submitter")
        with app.running():
            handles = [
                handle for _ in range(2) for handle in (plain.submit(), coroutine.submit(), batch.submit(1))
            ]
            assert [handle.result(PATIENCE) for handle in handles] == [""] * 6
