"""Cancelling: a job that was canceled in time never runs; one that runs is asked to stop."""

import asyncio

import pytest

from mainspring import JobStatus, Mainspring, current_job
from mainspring.testing import TimeTravel
from tests.support import Gate, eventually
from tests.unit.jobs.manager_fixture import ManagerFixture


@pytest.fixture
def threads() -> int:
    return 1


def test_a_job_that_is_held_and_canceled_never_runs(app: Mainspring, travel: TimeTravel) -> None:
    ran: list[str] = []

    @app.job
    def handler() -> None:
        ran.append(current_job().id)

    handle = handler.after(0.5).submit()
    travel.settle()
    assert handle.info().worker is not None
    assert handle.cancel()
    travel.fast_forward(minutes=1)
    assert (handle.status(), ran) == (JobStatus.CANCELED, [])
    assert app.manager().active_jobs() == ()


@pytest.mark.parametrize("late", [0, 0.1])
def test_a_start_that_the_store_refuses_is_no_start(shop: ManagerFixture, late: float) -> None:
    ran: list[str] = []
    shop.manager.register("ping", lambda: ran.append(current_job().id))
    shop.manager.start()
    ids = [shop.manager.submit("ping", delay=0.5) for _ in range(2)]
    shop.clock.settle()
    shop.engine.fail("take", 1_000)  # so that the worker learns of it only when it starts the job
    assert shop.manager.cancel(ids[0])
    shop.clock.settle()  # the fetch that the cancel causes fails, and is not part of the transaction of the start
    shop.clock.jump(0.5 + late if late else 0.49)
    shop.clock.advance(0.01)
    assert ran == [ids[1]]
    assert shop.manager.get(ids[0]).starts == 0


@pytest.mark.parametrize("delay", [0.5, 60])
def test_a_canceled_job_leaves_its_neighbours_alone(app: Mainspring, travel: TimeTravel, delay: float) -> None:
    ran: list[int] = []

    @app.job
    def handler(number: int) -> None:
        ran.append(number)

    handles = [handler.after(delay).submit(number) for number in range(4)]
    travel.settle()
    handles[1].cancel()
    travel.fast_forward(minutes=2)
    assert sorted(ran) == [0, 2, 3]


def test_a_running_job_that_looks_is_stopped(shop: ManagerFixture) -> None:
    gate = Gate()

    def handler() -> None:
        gate()
        if current_job().cancelled:
            raise InterruptedError("half way")

    shop.manager.register("loop", handler)
    shop.manager.start()
    job = shop.manager.submit("loop")
    gate.wait_until_entered()
    assert shop.manager.cancel(job) is False
    assert eventually(lambda: any(context.cancelled for context in shop.manager.active_jobs()))
    gate.open()
    shop.engine.wait_for("settle")
    assert shop.manager.get(job).status is JobStatus.CANCELED
    assert shop.manager.get(job).error == "stopped on request (InterruptedError: half way)"


def test_a_running_coroutine_is_canceled(shop: ManagerFixture) -> None:
    gate = Gate()
    gate.open()

    async def handler() -> None:
        gate()
        await asyncio.Event().wait()

    shop.manager.register("forever", handler)
    shop.manager.start()
    job = shop.manager.submit("forever")
    gate.wait_until_entered()
    assert shop.manager.cancel(job) is False
    shop.engine.wait_for("settle")
    assert shop.manager.get(job).status is JobStatus.CANCELED


def test_a_job_that_ends_in_spite_of_a_request_to_stop_has_completed(shop: ManagerFixture) -> None:
    gate = Gate()
    shop.manager.register("gate", gate.__call__)
    shop.manager.start()
    job = shop.manager.submit("gate")
    gate.wait_until_entered()
    shop.manager.cancel(job)
    gate.open()
    shop.engine.wait_for("settle")
    assert shop.manager.get(job).status is JobStatus.COMPLETED


def test_a_job_that_fails_after_a_request_to_stop_is_not_tried_again(shop: ManagerFixture) -> None:
    gate = Gate()

    def handler() -> None:
        gate()
        raise ValueError("no")

    shop.manager.register("fails", handler)
    shop.manager.start()
    job = shop.manager.submit("fails")
    gate.wait_until_entered()
    shop.manager.cancel(job)
    gate.open()
    shop.engine.wait_for("settle")
    assert shop.manager.get(job).status is JobStatus.CANCELED
