"""Middleware around attempts: in order, on every kind of invoker, and able to fail an attempt."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from mainspring import JobContext, current_job
from mainspring.jobs.context import current_batch
from mainspring.jobs.middleware import Middleware, Middlewares
from mainspring.jobs.processes.messages import AnswerKind, ChildAnswer
from mainspring.jobs.records import Outcome, OutcomeKind
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.worker.invoker import HandlerInvoker
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.jobs.worker.outcomes import RemoteError
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
    def ask() -> list[ChildAnswer]:
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
        invoker.invoke_remote(jobs, lambda: [ChildAnswer(AnswerKind.COMPLETED)] * 3)
    assert seen == [tuple(job.context for job in jobs)]
