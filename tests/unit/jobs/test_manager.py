"""The job manager on runners of the user's own choice: three layers, as a user would put them together."""

from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import (
    DuplicateJob,
    InvalidArguments,
    InvalidTransition,
    JobNotFound,
    JobStatus,
    Retry,
    TaskRunner,
    ThreadPool,
    UnknownHandler,
    current_runner,
)
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs import JobManager, JsonSerializer, MsgpackSerializer, Serializer
from mainspring.testing import ManualClock
from tests.support import Gate, within
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager
from tests.unit.jobs.scripted_engines import ScriptedEngine


@pytest.fixture
def manager(shop: ManagerFixture) -> JobManager:
    return shop.manager


# -- put together by hand


@pytest.mark.parametrize(
    "serializer", [None, JsonSerializer(), MsgpackSerializer()], ids=["default", "json", "msgpack"]
)
def test_three_layers_on_one_pool_run_a_job(serializer: Serializer | None) -> None:
    with ThreadPool(4) as pool:
        manager = JobManager(
            control=pool.sequenced(name="control"),
            io=pool.single_thread(name="io"),
            execution=pool.parallel(limit=2, name="execution"),
            engine=MemoryEngine(),
            serializer=serializer,
        )
        manager.register("double", lambda number: number * 2)
        manager.start()
        job = manager.submit("double", (21,))
        assert manager.wait(job, 10) is JobStatus.COMPLETED
        assert manager.get(job).result == 42
        assert manager.shutdown().interrupted == 0


def test_coroutines_run_although_execution_is_no_pool() -> None:
    async def handler(number: int) -> int:
        return number + 1

    with ThreadPool(4) as pool:
        manager = JobManager(
            control=pool.sequenced(), io=pool.sequenced(), execution=pool.parallel(limit=2), engine=MemoryEngine()
        )
        manager.register("next", handler)
        manager.start()
        job = manager.submit("next", {"number": 1})
        assert manager.wait(job, 10) is JobStatus.COMPLETED
        assert manager.get(job).result == 2
        manager.shutdown()


def test_handlers_run_on_the_execution_runner() -> None:
    seen: list[TaskRunner | None] = []
    with ThreadPool(4) as pool:
        execution = pool.parallel(limit=2, name="execution")
        manager = JobManager(
            control=pool.sequenced(), io=pool.sequenced(), execution=execution, engine=MemoryEngine()
        )
        manager.register("look", lambda: seen.append(current_runner()))
        manager.start()
        manager.wait(manager.submit("look"), 10)
        manager.shutdown()
    assert seen == [execution]


@pytest.mark.parametrize("options", [{"coroutines": 0}, {"coroutines": -1}, {"max_payload": 0}], ids=repr)
def test_a_limit_below_one_is_refused_by_name(clock: ManualClock, options: dict[str, Any]) -> None:
    engine = MemoryEngine(clock=clock)
    with ThreadPool(1, clock=clock) as pool, pytest.raises(ValueError, match=f"{next(iter(options))} must"):
        JobManager(control=pool, io=pool, execution=pool, engine=engine, **options)


# -- registering and submitting


def test_a_job_for_an_unknown_handler_is_refused(manager: JobManager) -> None:
    manager.register("ping", lambda: None)
    with pytest.raises(UnknownHandler, match=r"'pong'.*registered: ping"):
        manager.submit("pong")


def test_options_of_a_handler_are_those_of_the_decorator(manager: JobManager) -> None:
    handler = manager.register(
        "ping", lambda: None, queue="orders", timeout=5, retry=Retry(max_attempts=2, jitter=0)
    )
    assert (handler.options.queue, handler.timeout, handler.options.retry.max_attempts) == ("orders", 5_000_000, 2)


def test_an_unknown_option_is_refused(manager: JobManager) -> None:
    with pytest.raises(TypeError, match="color"):
        manager.register("ping", lambda: None, color="red")


def test_arguments_are_a_tuple_or_a_mapping(manager: JobManager) -> None:
    def handler(a: int, b: int = 2) -> None: ...

    manager.register("add", handler)
    ids = [manager.submit("add", (1,)), manager.submit("add", {"b": 3, "a": 1})]
    assert [manager.get(job).arguments for job in ids] == [{"a": 1}, {"b": 3, "a": 1}]


def test_wrong_arguments_are_refused_at_submit(manager: JobManager) -> None:
    def handler(a: int) -> None: ...

    manager.register("add", handler)
    with pytest.raises(InvalidArguments):
        manager.submit("add", ("one",))


def test_a_delayed_job_is_due_later(manager: JobManager, clock: ManualClock) -> None:
    manager.register("ping", lambda: None)
    info = manager.get(manager.submit_delayed("ping", delay=90, id="order-42"))
    assert (info.id, (info.due - clock.now()).total_seconds()) == ("order-42", 90)


def test_a_job_at_an_instant_is_due_then(manager: JobManager) -> None:
    manager.register("ping", lambda: None)
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert manager.get(manager.submit("ping", at=noon)).due == noon


def test_a_duplicate_is_told_to_its_caller(manager: JobManager) -> None:
    manager.register("ping", lambda: None)
    manager.submit("ping", id="order-42")
    with pytest.raises(DuplicateJob):
        manager.submit("ping", id="order-42")


# -- looking and changing


def test_a_job_that_does_not_exist_is_not_found(manager: JobManager) -> None:
    for call in (manager.get, manager.cancel, manager.retry, lambda job: manager.wait(job, 1)):
        with pytest.raises(JobNotFound, match="there is no job 'order-42'"):
            call("order-42")


def test_a_pending_job_is_canceled_once(manager: JobManager) -> None:
    manager.register("ping", lambda: None)
    job = manager.submit("ping")
    assert [manager.cancel(job), manager.cancel(job)] == [True, False]
    assert manager.get(job).status is JobStatus.CANCELED


def test_only_a_dead_letter_can_be_retried(manager: JobManager) -> None:
    manager.register("ping", lambda: None)
    job = manager.submit("ping")
    with pytest.raises(InvalidTransition, match=r"cannot retry job .*: it is PENDING"):
        manager.retry(job)


def test_a_dead_letter_that_is_retried_has_all_its_attempts_again(
    shop: ManagerFixture, manager: JobManager
) -> None:
    outcomes = iter([ValueError("a"), ValueError("b"), ValueError("c"), None])

    def handler() -> None:
        error = next(outcomes)
        if error is not None:
            raise error

    manager.register("fails", handler, retry=Retry(max_attempts=2, base=1, jitter=0))
    manager.start()
    job = manager.submit("fails")
    shop.clock.advance(10)
    before = manager.get(job)
    manager.retry(job)
    shop.clock.advance(10)
    after = manager.get(job)
    assert (before.status, before.attempts, after.status) == (JobStatus.FAILED, 2, JobStatus.COMPLETED)
    assert len(after.history) == 3


def test_jobs_are_listed_by_status_queue_and_type(manager: JobManager) -> None:
    manager.register("ping", lambda: None)
    manager.register("pong", lambda: None, queue="other")
    ping, pong = manager.submit("ping"), manager.submit("pong")
    gone = manager.submit("ping")
    manager.cancel(gone)
    assert [info.id for info in manager.list()] == [ping, pong, gone]
    assert [info.id for info in manager.list(type="ping")] == [ping, gone]
    assert [info.id for info in manager.list(queue="other")] == [pong]
    assert [info.id for info in manager.list(status="CANCELED")] == [gone]


def test_active_jobs_are_those_in_the_hands_of_this_process(shop: ManagerFixture, manager: JobManager) -> None:
    gate = Gate()
    manager.register("gate", gate.__call__)
    before = manager.active_jobs()
    manager.start()
    held = manager.submit("gate", delay=0.5)
    shop.clock.settle()
    running = manager.submit("gate")
    manager.submit("gate", delay=60)
    gate.wait_until_entered()
    shop.engine.wait_for("take")
    assert before == ()
    assert {job.id for job in manager.active_jobs()} == {held, running}
    gate.open()


# -- starting and stopping


def test_a_manager_is_started_once(manager: JobManager) -> None:
    manager.start()
    with pytest.raises(RuntimeError, match="already"):
        manager.start()


def test_a_manager_without_a_worker_has_nothing_to_stop(manager: JobManager) -> None:
    assert manager.shutdown().interrupted == 0


def test_a_negative_grace_is_refused_and_the_worker_goes_on(shop: ManagerFixture, manager: JobManager) -> None:
    manager.register("ping", lambda: None)
    manager.start()
    with pytest.raises(ValueError, match="grace must not be negative"):
        manager.shutdown(-1)
    job = manager.submit("ping")
    shop.clock.settle()
    assert manager.get(job).status is JobStatus.COMPLETED


# -- control never waits for io


def test_while_the_store_is_busy_control_answers_at_once(clock: ManualClock) -> None:
    engine = ScriptedEngine(clock=clock)
    with running_manager(clock, engine) as shop:
        shop.manager.register("ping", lambda: None)
        shop.manager.start()
        clock.settle()
        gate = engine.gate = Gate()
        shop.manager._wake()  # a take that does not come back
        gate.wait_until_entered()
        try:
            assert within(shop.manager.active_jobs) == ()
            assert within(lambda: shop.manager.register("pong", lambda: None)).name == "pong"
            within(shop.manager.retime)
        finally:
            gate.open()
        clock.settle()
