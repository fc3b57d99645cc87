"""Handles and waiting: told at once by a worker here, found out by looking otherwise."""

import gc
from datetime import timedelta
from threading import Semaphore

import pytest

from mainspring import Cancel, JobFailed, JobHandle, JobNotFound, JobStatus, Mainspring, Retry
from mainspring.jobs.job_waiter import JobWaiter
from mainspring.testing import TimeTravel
from tests.support import PATIENCE, Background, Gate, WatchedClock
from tests.unit.jobs.manager_fixture import running_manager


def test_a_result_has_the_type_that_the_handler_returns(app: Mainspring, travel: TimeTravel) -> None:
    @app.job
    def handler() -> timedelta:
        return timedelta(minutes=5)

    handle = handler.submit()
    travel.settle()
    assert handle.result() == timedelta(minutes=5)


def test_the_result_of_a_coroutine_function_is_what_it_returns(app: Mainspring, travel: TimeTravel) -> None:
    @app.job
    async def handler(number: int) -> set[int]:
        return {number}

    handle = handler.submit(3)
    travel.settle()
    assert handle.result() == {3}


def test_a_handler_without_a_result_returns_none(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(keep_result=False)
    def handler() -> int:
        return 7

    handle = handler.submit()
    travel.settle()
    assert handle.result() is None


def test_the_result_of_a_dead_letter_is_its_reason_in_one_line(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def handler() -> None:
        raise ValueError("no money")

    handle = handler.submit()
    travel.settle()
    with pytest.raises(JobFailed, match="is FAILED and has no result: ValueError: no money;") as caught:
        handle.result()
    assert (caught.value.job_id, caught.value.status) == (handle.id, "FAILED")


def test_the_result_of_a_canceled_job_is_its_reason(app: Mainspring, travel: TimeTravel) -> None:
    @app.job
    def handler() -> None:
        raise Cancel("sold out")

    handle = handler.submit()
    travel.settle()
    with pytest.raises(JobFailed, match="is CANCELED and has no result: sold out;"):
        handle.result()


def test_a_job_canceled_before_its_start_says_so(app: Mainspring, travel: TimeTravel) -> None:
    @app.job
    def handler() -> None: ...

    handle = handler.after(60).submit()
    handle.cancel()
    with pytest.raises(JobFailed, match="canceled before it started"):
        handle.result()


def test_while_time_stands_still_waiting_is_an_error_and_not_a_hang(app: Mainspring, travel: TimeTravel) -> None:
    @app.job
    def handler() -> None: ...

    handle = handler.after(60).submit()
    with pytest.raises(
        TimeoutError, match=r"is still PENDING, and the manual clock stands still; call fast_forward\(\)"
    ):
        handle.wait()


def test_a_wait_without_time_only_looks(app: Mainspring) -> None:
    @app.job
    def handler() -> None: ...

    with pytest.raises(TimeoutError, match=r"is still PENDING; is there a worker\?"):
        handler.submit().wait(timeout=0)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_timeout_that_makes_no_sense_is_refused(app: Mainspring, timeout: float) -> None:
    @app.job
    def handler() -> None: ...

    with pytest.raises(ValueError, match="timeout must"):
        handler.submit().wait(timeout)


def test_a_worker_in_this_process_tells_at_once(app: Mainspring) -> None:
    @app.job
    def handler(number: int) -> int:
        return number * 2

    with app.running():
        assert [handler.submit(number).result(PATIENCE) for number in range(5)] == [0, 2, 4, 6, 8]


def test_a_wait_for_a_job_that_was_purged_meanwhile_ends(app: Mainspring) -> None:
    @app.job
    def handler() -> None: ...

    handle = handler.submit()
    handle.cancel()
    assert handle.wait() is JobStatus.CANCELED


def test_handles_of_one_job_are_equal(app: Mainspring) -> None:
    @app.job
    def handler() -> None: ...

    one, other = handler.submit(), handler.submit()
    assert one == JobHandle[None](one.id, None, app)
    assert one != other
    assert len({one, other, JobHandle[None](one.id, None, app)}) == 2
    assert one != one.id


def test_dropping_a_handle_does_nothing_to_its_job(app: Mainspring) -> None:
    @app.job
    def handler() -> None: ...

    job_id = handler.submit().id
    gc.collect()
    assert app.get(job_id).status is JobStatus.PENDING


def test_a_handle_of_no_job_is_not_found(app: Mainspring) -> None:
    handle = JobHandle[None]("order-42", None, app)
    for call in (handle.info, handle.status, handle.wait, handle.result, handle.cancel):
        with pytest.raises(JobNotFound):
            call()


# -- waiting, in detail


def test_those_who_wait_are_told_and_look_again() -> None:
    clock = WatchedClock()
    waiter = JobWaiter(clock, virtual_time=False)
    status = [JobStatus.RUNNING]
    waiting = Background(lambda: waiter.wait("a", lambda: (status[0], 0), None), clock)
    clock.wait_until_asleep(waiting)
    status[0] = JobStatus.COMPLETED
    waiter.announce(["a"])
    assert waiting.result() is JobStatus.COMPLETED


def test_all_who_wait_for_one_job_are_told_at_once() -> None:
    clock = WatchedClock()
    waiter = JobWaiter(clock, virtual_time=False)
    status = [JobStatus.RUNNING]
    waiting = [Background(lambda: waiter.wait("a", lambda: (status[0], 0), None), clock) for _ in range(5)]
    for one in waiting:
        clock.wait_until_asleep(one)
    status[0] = JobStatus.COMPLETED
    waiter.announce(["a"])
    assert [one.result(PATIENCE) for one in waiting] == [JobStatus.COMPLETED] * 5


class Looks:
    """Answers one state after another, and says when it was asked."""

    def __init__(self, *states: JobStatus, remaining: int = 0) -> None:
        self._states = iter(states)
        self._remaining = remaining
        self._asked = Semaphore(0)

    def __call__(self) -> tuple[JobStatus, int]:
        self._asked.release()
        return next(self._states), self._remaining

    def wait_until_asked(self) -> None:
        assert self._asked.acquire(timeout=PATIENCE)

    def were_asked(self) -> bool:
        return self._asked.acquire(blocking=False)


def test_events_of_other_jobs_cause_no_query() -> None:
    clock = WatchedClock()
    waiter = JobWaiter(clock, virtual_time=False)
    looks = Looks(JobStatus.RUNNING, JobStatus.COMPLETED)
    waiting = Background(lambda: waiter.wait("a", looks, None), clock)
    looks.wait_until_asked()
    clock.wait_until_asleep(waiting)
    waiter.announce(["b", "c"])
    assert not looks.were_asked()
    waiter.announce(["a"])
    assert waiting.result() is JobStatus.COMPLETED


def test_what_ends_elsewhere_is_found_by_looking() -> None:
    clock = WatchedClock()
    waiter = JobWaiter(clock, virtual_time=False)
    looks = Looks(JobStatus.PENDING, JobStatus.RUNNING, JobStatus.COMPLETED)
    waiting = Background(lambda: waiter.wait("a", looks, None), clock)
    for _ in range(2):
        looks.wait_until_asked()
        clock.wait_until_asleep(waiting)
        clock.jump(1)
    assert waiting.result() is JobStatus.COMPLETED


def test_a_job_that_is_not_due_is_not_looked_at_until_then_or_for_half_a_second() -> None:
    clock = WatchedClock()
    waiter = JobWaiter(clock, virtual_time=False)
    looks = Looks(JobStatus.PENDING, JobStatus.PENDING, JobStatus.COMPLETED, remaining=3_600 * 10**9)
    waiting = Background(lambda: waiter.wait("a", looks, None), clock)
    for _ in range(2):
        looks.wait_until_asked()
        clock.wait_until_asleep(waiting)
        clock.jump(0.499)
        clock.wait_until_asleep(waiting)
        assert not looks.were_asked()
        clock.jump(0.001)
    assert waiting.result() is JobStatus.COMPLETED


def test_a_wait_ends_at_its_deadline() -> None:
    clock = WatchedClock()
    waiter = JobWaiter(clock, virtual_time=False)
    waiting = Background(lambda: waiter.wait("a", lambda: (JobStatus.RUNNING, 0), 10**9), clock)
    clock.wait_until_asleep(waiting)
    clock.jump(1)
    with pytest.raises(TimeoutError, match="job 'a' is still RUNNING"):
        waiting.result()


def test_a_waiter_in_the_process_of_the_worker_never_polls_the_clock() -> None:
    clock = WatchedClock()
    gate = Gate()
    with running_manager(clock, has_maintenance=True) as shop:
        shop.manager.register("gate", gate.__call__)
        shop.manager.start()
        job = shop.manager.submit("gate")
        gate.wait_until_entered()
        waiting = Background(lambda: shop.manager.wait(job, None), clock)
        clock.wait_until_asleep(waiting)
        gate.open()
        assert waiting.result() is JobStatus.COMPLETED
