"""Batch handlers: jobs that are due together become one call, and each of them ends on its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mainspring import Cancel, JobContext, JobStatus, Retry, Snooze, current_job
from mainspring.jobs.context import current_batch, current_headers
from mainspring.jobs.records import Cause, OutcomeKind
from mainspring.testing import ManualClock
from tests.support import Background, Gate, eventually
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager

Call = Callable[[list[int]], Any]


def plain(call: Call) -> Callable[..., Any]:
    def handler(numbers: list[int]) -> Any:
        return call(numbers)

    return handler


def on_a_loop(call: Call) -> Callable[..., Any]:
    async def handler(numbers: list[int]) -> Any:
        await asyncio.sleep(0)
        return call(numbers)

    return handler


@pytest.fixture(params=[plain, on_a_loop], ids=["def", "async def"])
def register(request: pytest.FixtureRequest, shop: ManagerFixture) -> Callable[..., None]:
    """Registers batch handler `mail`, on threads or on an event loop."""

    def register(call: Call, *, batch: int = 100, **options: Any) -> None:
        shop.manager.register("mail", request.param(call), batch=batch, **options)

    return register


class Calls(list[list[int]]):
    """What a handler was called with."""

    def __call__(self, numbers: list[int]) -> None:
        self.append(numbers)


@pytest.fixture
def calls() -> Calls:
    return Calls()


def submit(shop: ManagerFixture, count: int, delay: float | None = None) -> list[str]:
    return [shop.manager.submit("mail", (number,), delay=delay) for number in range(count)]


def statuses(shop: ManagerFixture, ids: list[str]) -> list[JobStatus]:
    return [shop.manager.get(job).status for job in ids]


# -- what becomes one call


def test_jobs_that_are_due_together_are_one_call(
    shop: ManagerFixture, register: Callable[..., None], calls: Calls
) -> None:
    register(calls)
    ids = submit(shop, 50)
    shop.manager.start()
    shop.clock.settle()
    assert calls == [list(range(50))]
    assert set(statuses(shop, ids)) == {JobStatus.COMPLETED}


def test_a_call_has_no_more_jobs_than_the_handler_takes(
    shop: ManagerFixture, register: Callable[..., None], calls: Calls
) -> None:
    register(calls, batch=20)
    submit(shop, 50)
    shop.manager.start()
    shop.clock.settle()
    assert calls == [list(range(20)), list(range(20, 40)), list(range(40, 50))]


@pytest.mark.parametrize("delay", [0.5, 30], ids=["within the lead", "far away"])
def test_jobs_of_one_instant_are_one_call_when_it_comes(
    shop: ManagerFixture, register: Callable[..., None], calls: Calls, delay: float
) -> None:
    register(calls)
    shop.manager.start()
    submit(shop, 30, delay)
    shop.clock.advance(delay - 0.001)
    before = list(calls)
    shop.clock.advance(0.001)
    assert (before, calls) == ([], [list(range(30))])


def test_jobs_gather_while_a_call_runs(shop: ManagerFixture) -> None:
    gate = Gate()
    calls: list[list[int]] = []

    def mail(numbers: list[int]) -> None:
        calls.append(numbers)
        gate()

    shop.manager.register("mail", mail, batch=10)
    shop.manager.start()
    submit(shop, 1)
    gate.wait_until_entered()
    ids = submit(shop, 5)
    pending = statuses(shop, ids)
    gate.open()
    shop.clock.settle()
    assert set(pending) == {JobStatus.PENDING}
    assert calls == [[0], [0, 1, 2, 3, 4]]


def test_a_batch_handler_does_not_hold_jobs_ahead_of_their_time(
    shop: ManagerFixture, register: Callable[..., None], calls: Calls
) -> None:
    register(calls)
    shop.manager.start()
    submit(shop, 5, 0.5)
    shop.clock.settle()
    assert shop.manager.active_jobs() == ()


def test_one_call_of_a_handler_runs_at_a_time(shop: ManagerFixture) -> None:
    gate = Gate()
    shop.manager.register("mail", plain(lambda _numbers: gate()), batch=1)
    shop.manager.start()
    ids = submit(shop, 2)
    gate.wait_until_entered()
    during = statuses(shop, ids)
    gate.open()
    shop.clock.settle()
    assert during == [JobStatus.RUNNING, JobStatus.PENDING]
    assert statuses(shop, ids) == [JobStatus.COMPLETED] * 2


def test_a_call_occupies_one_thread_beside_other_jobs(shop: ManagerFixture) -> None:
    gate = Gate()
    shop.manager.register("mail", plain(lambda _numbers: gate()), batch=10)
    other = Gate()
    shop.manager.register("other", other.__call__)
    shop.manager.start()
    submit(shop, 10)
    gate.wait_until_entered()
    shop.manager.submit("other")
    other.wait_until_entered()  # beside the call
    for each in (gate, other):
        each.open()
    shop.clock.settle()
    assert shop.manager.counts()[JobStatus.COMPLETED] == 11


def test_a_job_that_is_canceled_before_the_call_is_not_in_it(
    shop: ManagerFixture, register: Callable[..., None], calls: Calls
) -> None:
    register(calls)
    shop.manager.start()
    ids = submit(shop, 3, 30)
    shop.manager.cancel(ids[1])
    shop.clock.advance(30)
    assert calls == [[0, 2]]


def test_jobs_that_find_no_thread_in_time_are_handed_back(clock: ManualClock, calls: Calls) -> None:
    with running_manager(clock, threads=1) as shop:
        gate = Gate()
        shop.manager.register("gate", gate.__call__)
        shop.manager.register("mail", plain(calls), batch=10)
        shop.manager.start()
        shop.manager.submit("gate")
        gate.wait_until_entered()
        (job,) = submit(shop, 1)
        assert eventually(lambda: len(shop.manager.active_jobs()) == 2)
        (outcome,) = shop.wait_for_hand_back()
        info = shop.manager.get(job)
        gate.open()
        assert (outcome.lease.id, outcome.kind) == (job, OutcomeKind.HANDED_BACK)
        assert (info.status, info.starts, info.attempts) == (JobStatus.PENDING, 0, 0)
        shop.clock.settle()
        assert calls == [[0]]


# -- what comes of it


def test_each_job_gets_its_own_result(shop: ManagerFixture, register: Callable[..., None]) -> None:
    register(lambda numbers: [number * number for number in numbers])
    ids = submit(shop, 4)
    shop.manager.start()
    shop.clock.settle()
    assert [shop.manager.get(job).result for job in ids] == [0, 1, 4, 9]


def test_an_exception_in_the_list_is_charged_to_its_job_alone(
    shop: ManagerFixture, register: Callable[..., None]
) -> None:
    answers = [1, ValueError("no"), Snooze(60), Cancel("sold out")]
    register(lambda _numbers: answers, retry=Retry(max_attempts=1))
    ids = submit(shop, 4)
    shop.manager.start()
    shop.clock.settle()
    assert statuses(shop, ids) == [
        JobStatus.COMPLETED,
        JobStatus.FAILED,
        JobStatus.PENDING,
        JobStatus.CANCELED,
    ]
    assert shop.manager.get(ids[1]).error == "ValueError: no"


def test_what_the_call_raises_is_charged_to_each_job_by_its_own_count(
    shop: ManagerFixture, register: Callable[..., None]
) -> None:
    seen: list[int] = []

    def fail(numbers: list[int]) -> None:
        seen.append(len(numbers))
        raise ValueError("no")

    register(fail, retry=Retry(max_attempts=2, base=10, jitter=0))
    (first,) = submit(shop, 1)
    shop.manager.start()
    shop.clock.advance(5)
    (second,) = submit(shop, 1)
    shop.clock.advance(5)  # the second attempt of the first, after that the second attempt of the second
    before = statuses(shop, [first, second])
    shop.clock.advance(5)
    assert before == [JobStatus.FAILED, JobStatus.PENDING]
    assert statuses(shop, [first, second]) == [JobStatus.FAILED] * 2
    assert [shop.manager.get(job).failures for job in (first, second)] == [2, 2]
    assert sum(seen) == 4


@pytest.mark.parametrize("returned", [[1], [1, 2, 3], "ab", 7], ids=repr)
def test_a_list_of_another_length_is_a_failure_that_says_so(
    shop: ManagerFixture, register: Callable[..., None], returned: object
) -> None:
    register(lambda _numbers: returned, retry=Retry(max_attempts=1))
    ids = submit(shop, 2)
    shop.manager.start()
    shop.clock.settle()
    errors = {shop.manager.get(job).error or "" for job in ids}
    assert all("got 2 jobs and must return nothing or a list of as many results" in error for error in errors)


def test_arguments_that_do_not_fit_any_more_fail_alone(
    shop: ManagerFixture, clock: ManualClock, register: Callable[..., None], calls: Calls
) -> None:
    with running_manager(clock, shop.engine) as before:

        def mail(numbers: list[str]) -> None: ...

        before.manager.register("mail", mail, batch=10)
        bad = before.manager.submit("mail", ("seven",))
    register(calls, retry=Retry(max_attempts=1))
    (good,) = submit(shop, 1)
    shop.manager.start()
    shop.clock.settle()
    assert calls == [[0]]
    assert statuses(shop, [bad, good]) == [JobStatus.FAILED, JobStatus.COMPLETED]


# -- what a handler knows


def test_a_batch_handler_sees_its_jobs_in_the_order_of_its_list(
    shop: ManagerFixture, register: Callable[..., None]
) -> None:
    seen: list[JobContext] = []
    register(lambda _numbers: seen.extend(current_batch()))
    ids = submit(shop, 3)
    shop.manager.start()
    shop.clock.settle()
    assert [job.id for job in seen] == ids


def test_in_a_batch_no_job_is_the_current_one(shop: ManagerFixture, register: Callable[..., None]) -> None:
    register(lambda _numbers: current_job(), retry=Retry(max_attempts=1))
    ids = submit(shop, 2)
    shop.manager.start()
    shop.clock.settle()
    assert "a batch handler runs here for 2 jobs, so there is no single current job" in (
        shop.manager.get(ids[0]).error or ""
    )
    assert "call current_batch()" in (shop.manager.get(ids[0]).error or "")


def test_in_a_handler_for_single_jobs_the_batch_is_one(shop: ManagerFixture) -> None:
    shop.manager.register("ping", lambda: [job.id for job in current_batch()])
    shop.manager.start()
    job = shop.manager.submit("ping")
    shop.clock.settle()
    assert shop.manager.get(job).result == [job]


def test_outside_of_a_handler_there_is_no_batch() -> None:
    with pytest.raises(RuntimeError, match=r"no jobs run here; call current_batch\(\) inside of a handler"):
        current_batch()


def test_jobs_submitted_in_a_batch_carry_on_what_all_of_it_carries(
    shop: ManagerFixture, register: Callable[..., None]
) -> None:
    seen: list[dict[str, str]] = []
    register(lambda _numbers: seen.append(dict(current_headers())))
    for number in range(2):
        shop.manager.submit("mail", (number,), headers={"user": "42", "number": str(number)})
    shop.manager.start()
    shop.clock.settle()
    assert seen == [{"user": "42"}]


# -- stopping


class Waiting:
    """A batch handler that waits until one of its jobs is canceled, or for ever."""

    def __init__(self) -> None:
        self.entered = Gate()
        self.entered.open()
        self.seen: list[list[bool]] = []

    def until_one_is_canceled(self, numbers: list[int]) -> None:
        self.entered()
        while not any(job.cancelled for job in current_batch()):
            continue
        self.seen.append([job.cancelled for job in current_batch()])

    async def for_ever(self, numbers: list[int]) -> None:
        self.entered()
        await asyncio.Event().wait()


def test_cancelling_one_job_of_a_call_reaches_that_job_alone(shop: ManagerFixture) -> None:
    waiting = Waiting()
    shop.manager.register("mail", waiting.until_one_is_canceled, batch=10)
    ids = submit(shop, 3)
    shop.manager.start()
    waiting.entered.wait_until_entered()
    shop.manager.cancel(ids[1])
    shop.clock.settle()
    assert waiting.seen == [[False, True, False]]
    assert statuses(shop, ids) == [JobStatus.COMPLETED] * 3


def test_cancelling_one_job_does_not_cancel_the_coroutine_of_all(shop: ManagerFixture) -> None:
    waiting = Waiting()
    shop.manager.register("mail", waiting.for_ever, batch=10)
    ids = submit(shop, 2)
    shop.manager.start()
    waiting.entered.wait_until_entered()
    shop.manager.cancel(ids[0])
    shop.engine.wait_for("take")
    contexts = {context.id: context for context in shop.manager.active_jobs()}
    assert statuses(shop, ids) == [JobStatus.RUNNING] * 2
    assert not contexts[ids[1]].cancelled


def test_a_timeout_is_one_of_the_call_and_charged_to_all_its_jobs(shop: ManagerFixture) -> None:
    waiting = Waiting()
    shop.manager.register("mail", waiting.for_ever, batch=10, timeout=5, retry=Retry(max_attempts=1))
    ids = submit(shop, 3)
    shop.manager.start()
    waiting.entered.wait_until_entered()
    shop.clock.jump(5)
    shop.engine.wait_for("settle")
    shop.clock.settle()
    infos = [shop.manager.get(job) for job in ids]
    assert [(info.status, info.timeouts) for info in infos] == [(JobStatus.FAILED, 1)] * 3


def test_a_stop_interrupts_every_job_of_a_call(shop: ManagerFixture) -> None:
    waiting = Waiting()
    shop.manager.register("mail", waiting.for_ever, batch=10)
    ids = submit(shop, 3)
    shop.manager.start()
    waiting.entered.wait_until_entered()
    assert shop.manager.shutdown(0).interrupted == 3
    infos = [shop.manager.get(job) for job in ids]
    assert [(info.status, info.interruptions) for info in infos] == [(JobStatus.PENDING, 1)] * 3
    assert {attempt.cause for info in infos for attempt in info.history} == {Cause.DEPLOY}


def test_a_stop_lets_a_call_finish(shop: ManagerFixture) -> None:
    gate = Gate()
    shop.manager.register("mail", plain(lambda _numbers: gate()), batch=10)
    ids = submit(shop, 3)
    shop.manager.start()
    gate.wait_until_entered()
    stopping = Background(lambda: shop.manager.shutdown(60))
    gate.open()
    assert stopping.result().interrupted == 0
    assert statuses(shop, ids) == [JobStatus.COMPLETED] * 3
