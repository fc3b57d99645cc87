"""Sequences: jobs with equal keys run one after another, in the order (due, submission), on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import pytest

from mainspring import JobFunction, JobStatus, Mainspring, Retry, Snooze
from mainspring.testing import TimeTravel, time_travel
from tests.unit.jobs.call_log import START, CallLog


@pytest.fixture
def call_log(app: Mainspring) -> CallLog:
    return CallLog(app)


@pytest.fixture
def deeds() -> dict[str, list[Callable[[], Any]]]:
    """What jobs do on their first attempts, by name; afterwards, and without an entry, they succeed."""
    return {}


def give_up() -> None:
    raise ValueError("no")


def snooze() -> None:
    raise Snooze(30)


@pytest.fixture
def step(app: Mainspring, call_log: CallLog, deeds: dict[str, list[Callable[[], Any]]]) -> JobFunction[..., None]:
    @app.job(name="shop.step", retry=Retry(max_attempts=3, base=10, factor=1, jitter=0))
    def step(name: str) -> None:
        call_log.record(name)
        if deeds.get(name):
            deeds[name].pop(0)()

    return step


@pytest.fixture
def travel(app: Mainspring, step: JobFunction[..., None]) -> Iterator[TimeTravel]:
    with time_travel(app, start=START) as travel:
        yield travel


# -- order


def test_jobs_of_a_sequence_run_in_the_order_of_their_submission(
    travel: TimeTravel, step: JobFunction[..., None], call_log: CallLog
) -> None:
    names = [f"{number}" for number in range(30)]
    step.options(sequence="order-42").submit_many([(name,) for name in names])
    travel.settle()
    assert call_log.names == names


def test_jobs_of_a_sequence_run_in_the_order_of_their_due_times(
    travel: TimeTravel, step: JobFunction[..., None], call_log: CallLog
) -> None:
    for name, delay in (("late", 20), ("early", 10), ("now", 0)):
        step.options(sequence="s", delay=delay).submit(name)
    travel.fast_forward(30)
    assert call_log.entries == [("now", 0), ("early", 10), ("late", 20)]


def test_never_two_of_a_sequence_run_at_once_whatever_their_handlers_queues_and_priorities(
    app: Mainspring, travel: TimeTravel
) -> None:
    lock, at_once, most = Lock(), {"a": 0, "b": 0}, {"a": 0, "b": 0}

    def work(sequence: str) -> None:
        with lock:
            at_once[sequence] += 1
            most[sequence] = max(most[sequence], at_once[sequence])
        assert app.counts()[JobStatus.RUNNING] <= 2  # a look at the store: the others would have time to start
        with lock:
            at_once[sequence] -= 1

    one, two = app.job(name="one")(work), app.job(name="two", queue="other")(work)
    for _ in range(10):
        for sequence in "ab":
            for job in (one, two):
                job.options(sequence=sequence).submit(sequence)
    travel.settle()
    assert app.counts()[JobStatus.COMPLETED] == 40
    assert most == {"a": 1, "b": 1}


def test_jobs_of_two_handlers_share_a_sequence_in_order(
    app: Mainspring, travel: TimeTravel, call_log: CallLog
) -> None:
    pay, pack = (
        app.job(name="pay")(call_log.record),
        app.job(name="pack", queue="other")(call_log.record),
    )
    for number in range(5):
        pay.options(sequence="s").submit(f"pay {number}")
        pack.options(sequence="s").submit(f"pack {number}")
    travel.settle()
    assert call_log.names == [f"{what} {number}" for number in range(5) for what in ("pay", "pack")]


def test_a_coroutine_and_a_function_share_a_sequence_in_order(
    app: Mainspring, travel: TimeTravel, step: JobFunction[..., None], call_log: CallLog
) -> None:
    @app.job
    async def fetch(name: str) -> None:
        call_log.record(name)

    for name, job in (("1", step), ("2", fetch), ("3", step), ("4", fetch)):
        job.options(sequence="s").submit(name)
    travel.settle()
    assert call_log.names == ["1", "2", "3", "4"]


def test_a_blocked_sequence_keeps_no_other_waiting(
    travel: TimeTravel, step: JobFunction[..., None], call_log: CallLog, deeds: dict[str, list[Callable[[], Any]]]
) -> None:
    deeds["a1"] = [give_up]
    for name in ("a1", "a2"):
        step.options(sequence="a").submit(name)
    step.options(sequence="b").submit("b1")
    step.submit("free")
    travel.settle()
    assert sorted(call_log.names) == ["a1", "b1", "free"]


# -- places


@pytest.mark.parametrize("deed", [give_up, snooze], ids=["retry", "snooze"])
def test_a_job_that_comes_again_holds_its_place(
    travel: TimeTravel,
    step: JobFunction[..., None],
    call_log: CallLog,
    deeds: dict[str, list[Callable[[], Any]]],
    deed: Callable[[], Any],
) -> None:
    deeds["first"] = [deed]
    for name in ("first", "second"):
        step.options(sequence="s").submit(name)
    wait = 10 if deed is give_up else 30
    travel.fast_forward(60)
    assert call_log.entries == [("first", 0), ("first", wait), ("second", wait)]


@pytest.mark.parametrize("deed", [give_up, snooze], ids=["retry", "snooze"])
@pytest.mark.parametrize("where", ["handler", "submit"])
def test_a_job_that_steps_aside_lets_others_go_first(
    app: Mainspring,
    call_log: CallLog,
    deeds: dict[str, list[Callable[[], Any]]],
    deed: Callable[[], Any],
    where: str,
) -> None:
    @app.job(steps_aside=where == "handler", retry=Retry(base=10, jitter=0))
    def polite(name: str) -> None:
        call_log.record(name)
        if deeds.get(name):
            deeds[name].pop(0)()

    job = polite if where == "handler" else polite.options(steps_aside=True)
    deeds["first"] = [deed]
    wait = 10 if deed is give_up else 30
    with time_travel(app, start=START) as travel:
        for name, delay in (("first", 0), ("second", 0), ("third", 5), ("fourth", 40)):
            job.options(sequence="s", delay=delay).submit(name)
        travel.fast_forward(60)
    assert call_log.entries == [("first", 0), ("second", 0), ("third", 5), ("first", wait), ("fourth", 40)]


def test_a_job_that_is_given_up_lets_the_next_one_go(
    travel: TimeTravel, step: JobFunction[..., None], call_log: CallLog, deeds: dict[str, list[Callable[[], Any]]]
) -> None:
    deeds["first"] = [give_up, give_up, give_up]
    for name in ("first", "second"):
        step.options(sequence="s").submit(name)
    travel.fast_forward(60)
    assert call_log.entries == [("first", 0), ("first", 10), ("first", 20), ("second", 20)]


def test_a_head_that_is_canceled_lets_the_next_one_go_at_once(
    travel: TimeTravel, step: JobFunction[..., None], call_log: CallLog, deeds: dict[str, list[Callable[[], Any]]]
) -> None:
    deeds["first"] = [give_up]
    first, _ = (step.options(sequence="s").submit(name) for name in ("first", "second"))
    travel.fast_forward(4)
    assert first.cancel()
    travel.settle()
    assert call_log.entries == [("first", 0), ("second", 4)]


def test_a_head_that_expires_lets_the_next_one_go(
    app: Mainspring, travel: TimeTravel, step: JobFunction[..., None], call_log: CallLog
) -> None:
    app.queue("default").pause()
    first = step.options(sequence="s", expires=5).submit("first")
    step.options(sequence="s", queue="other").submit("second")
    travel.fast_forward(4)
    before = list(call_log.names)
    travel.fast_forward(4)
    assert first.status() is JobStatus.FAILED
    assert (before, call_log.entries) == ([], [("second", 5)])


def test_a_head_that_waits_for_a_retry_keeps_its_place_when_it_is_run_now(
    app: Mainspring,
    travel: TimeTravel,
    step: JobFunction[..., None],
    call_log: CallLog,
    deeds: dict[str, list[Any]],
) -> None:
    deeds["first"] = [give_up, snooze]
    first, _ = (step.options(sequence="s").submit(name) for name in ("first", "second"))
    travel.settle()
    for _ in range(2):
        travel.fast_forward(1)
        assert app.run_now(first.id)
        travel.settle()
    assert call_log.entries == [("first", 0), ("first", 1), ("first", 2), ("second", 2)]


def test_a_head_that_has_started_keeps_its_place_when_it_is_put_off(
    app: Mainspring,
    travel: TimeTravel,
    step: JobFunction[..., None],
    call_log: CallLog,
    deeds: dict[str, list[Any]],
) -> None:
    deeds["first"] = [give_up]
    first, _ = (step.options(sequence="s").submit(name) for name in ("first", "second"))
    travel.settle()
    assert app.reschedule(first.id, delay=60)
    travel.fast_forward(60)
    assert call_log.entries == [("first", 0), ("first", 60), ("second", 60)]


def test_a_head_in_a_paused_queue_keeps_the_others_waiting(
    app: Mainspring, travel: TimeTravel, step: JobFunction[..., None], call_log: CallLog
) -> None:
    app.queue("slow").pause()
    step.options(sequence="s", queue="slow").submit("first")
    step.options(sequence="s").submit("second")
    travel.fast_forward(60)
    before = list(call_log.names)
    app.queue("slow").resume()
    travel.settle()
    assert (before, call_log.names) == ([], ["first", "second"])


def test_a_dead_letter_that_is_retried_queues_up_at_the_end_of_its_sequence(
    app: Mainspring,
    travel: TimeTravel,
    step: JobFunction[..., None],
    call_log: CallLog,
    deeds: dict[str, list[Any]],
) -> None:
    deeds["letter"] = [give_up, give_up, give_up]
    letter = step.options(sequence="s").submit("letter")
    travel.fast_forward(60)
    app.queue("default").pause()
    step.options(sequence="s").submit("other")
    travel.fast_forward(1)
    app.retry(letter.id)
    app.queue("default").resume()
    travel.settle()
    assert call_log.names == ["letter"] * 3 + ["other", "letter"]


def test_a_replayed_letter_runs_in_the_sequence_of_the_original(
    app: Mainspring, travel: TimeTravel, step: JobFunction[..., None], deeds: dict[str, list[Any]]
) -> None:
    deeds["letter"] = [give_up, give_up, give_up]
    letter = step.options(sequence="s").submit("letter")
    travel.fast_forward(60)
    (copy,) = app.dead_letters.replay(letter.id)
    assert app.manager().record(copy).sequence == "s"
    travel.settle()
    assert app.get(copy).status is JobStatus.COMPLETED


def test_a_job_may_submit_the_next_one_of_its_own_sequence(app: Mainspring, call_log: CallLog) -> None:
    @app.job
    def link(number: int) -> None:
        call_log.record(number)
        if number < 5:
            link.options(sequence="s").submit(number + 1)
            call_log.record(f"submitted {number + 1}")

    with time_travel(app, start=START) as travel:
        link.options(sequence="s").submit(4)
        travel.settle()
    assert call_log.names == [4, "submitted 5", 5]


def test_a_long_sequence_and_many_short_ones_all_end(
    app: Mainspring, travel: TimeTravel, step: JobFunction[..., None], call_log: CallLog
) -> None:
    step.options(sequence="long").submit_many([("long",)] * 100)
    for number in range(100):
        step.options(sequence=f"short {number}").submit("short")
    travel.settle()
    assert app.counts()[JobStatus.COMPLETED] == 200
    assert sorted(call_log.names) == ["long"] * 100 + ["short"] * 100


# -- by argument


def test_jobs_of_a_handler_may_make_a_sequence_for_each_value(app: Mainspring, call_log: CallLog) -> None:
    failing = {"a"}

    @app.job(sequence_by="order", retry=Retry(base=10, jitter=0))
    def step(order: str, number: int) -> None:
        call_log.record((order, number))
        if order in failing:
            failing.discard(order)
            raise ValueError("no")

    with time_travel(app, start=START) as travel:
        step.submit_many([(order, number) for number in (1, 2) for order in "ab"])
        travel.fast_forward(60)
    assert [entry for entry in call_log.entries if entry[0][0] == "a"] == [
        (("a", 1), 0),
        (("a", 1), 10),
        (("a", 2), 10),
    ]
    assert [entry for entry in call_log.entries if entry[0][0] == "b"] == [(("b", 1), 0), (("b", 2), 0)]


def test_handlers_with_the_same_parameter_share_the_sequence_of_its_value(
    app: Mainspring, call_log: CallLog
) -> None:
    @app.job(sequence_by="order", retry=Retry(base=10, max_attempts=2, jitter=0))
    def pay(order: int) -> None:
        call_log.record(f"pay {order}")
        if order == 1 and call_log.names.count("pay 1") == 1:
            raise ValueError("no")

    @app.job(sequence_by=("order",))
    def ship(order: int, express: str = "no") -> None:
        call_log.record(f"ship {order}")

    with time_travel(app, start=START) as travel:
        for order in (1, 2):
            pay.submit(order)
            ship.submit(order)
        travel.fast_forward(60)
    assert [name for name in call_log.names if name.endswith("1")] == ["pay 1", "pay 1", "ship 1"]
    assert ("ship 1", 10) in call_log.entries
    assert ("ship 2", 0) in call_log.entries


def test_a_submit_may_name_another_sequence_than_its_arguments_make(app: Mainspring) -> None:
    @app.job(sequence_by="order")
    def step(order: int) -> None: ...

    with time_travel(app, start=START):
        record = app.manager().record
        own, other, named = step.submit(1), step.submit(2), step.options(sequence="mine").submit(1)
        sequences = [record(handle.id).sequence for handle in (own, other, named)]
    assert sequences[2] == "mine"
    assert len(set(sequences)) == 3
