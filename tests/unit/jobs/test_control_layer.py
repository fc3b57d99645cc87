"""The control layer: calls one after another, in their callers where possible."""

from collections.abc import Iterator
from threading import Thread, current_thread, get_ident

import pytest

from mainspring import TaskFailure, ThreadPool
from mainspring.jobs.layers import SLICE, ControlLayer
from tests.support import Background, Gate, within


@pytest.fixture
def pool(failures: list[TaskFailure]) -> Iterator[ThreadPool]:
    with ThreadPool(2, name="layers", on_error=failures.append) as pool:
        yield pool


@pytest.fixture
def control(pool: ThreadPool) -> ControlLayer:
    return ControlLayer(pool.sequenced(name="control"))


def test_a_call_on_an_idle_sequence_runs_in_its_caller(control: ControlLayer) -> None:
    ran_on: list[int] = []
    control.post(lambda: ran_on.append(get_ident()))
    assert ran_on == [get_ident()]


def test_an_answer_is_returned(control: ControlLayer) -> None:
    assert control.run(lambda a, b: a + b, 40, 2) == 42


def test_an_error_is_raised_where_the_answer_was_asked_for(
    control: ControlLayer, failures: list[TaskFailure]
) -> None:
    with pytest.raises(ZeroDivisionError):
        control.run(lambda: 1 // 0)
    assert failures == []


def test_an_error_of_a_posted_call_is_reported_and_the_next_call_runs(
    control: ControlLayer, failures: list[TaskFailure]
) -> None:
    ran: list[str] = []
    control.post(lambda: 1 // 0)
    control.post(ran.append, "next")
    assert ran == ["next"]
    assert [(type(failure.error), failure.runner) for failure in failures] == [(ZeroDivisionError, "control")]


def test_a_system_exit_stops_nothing(control: ControlLayer, failures: list[TaskFailure]) -> None:
    def leave() -> None:
        raise SystemExit(3)

    control.post(leave)
    assert control.run(lambda: "alive") == "alive"
    assert [type(failure.error) for failure in failures] == [SystemExit]


def test_a_call_posted_inside_of_a_call_comes_after_it(control: ControlLayer) -> None:
    seen: list[str] = []

    def outer() -> None:
        control.post(seen.append, "inner")
        seen.append("outer")

    control.post(outer)
    assert seen == ["outer", "inner"]


def test_an_answer_asked_for_inside_of_a_call_is_found_at_once(control: ControlLayer) -> None:
    assert within(lambda: control.run(lambda: control.run(lambda: "inner") + "!")) == "inner!"


def test_posts_of_one_thread_keep_their_order_while_the_sequence_is_busy(control: ControlLayer) -> None:
    gate = Gate()
    seen: list[int] = []
    busy = Background(lambda: control.post(gate))
    gate.wait_until_entered()
    for number in range(200):
        control.post(seen.append, number)
    assert seen == []
    gate.open()
    busy.result()
    within(lambda: control.run(lambda: None))
    assert seen == list(range(200))


def test_a_post_never_waits_for_the_call_that_is_busy(control: ControlLayer) -> None:
    gate = Gate()
    busy = Background(lambda: control.post(gate))
    gate.wait_until_entered()
    within(lambda: control.post(lambda: None))
    gate.open()
    busy.result()


def test_a_caller_serves_others_for_a_while_and_then_hands_over_to_the_runner(control: ControlLayer) -> None:
    gate = Gate()
    threads: list[str] = []
    busy = Background(lambda: control.post(gate))
    gate.wait_until_entered()
    for _ in range(3 * SLICE):
        control.post(lambda: threads.append(current_thread().name))
    gate.open()
    busy.result()
    control.run(lambda: None)  # on this thread, which may serve some of them, too
    assert len(threads) == 3 * SLICE
    assert threads.count("background") < SLICE
    assert threads[0] == "background"


def test_after_the_shutdown_of_its_runner_a_caller_serves_on(pool: ThreadPool, control: ControlLayer) -> None:
    gate = Gate()
    seen: list[int] = []
    busy = Background(lambda: control.post(gate))
    gate.wait_until_entered()
    for number in range(5 * SLICE):
        control.post(seen.append, number)
    pool.shutdown()
    gate.open()
    busy.result()
    assert seen == list(range(5 * SLICE))


def test_calls_of_many_threads_are_never_two_at_once_and_none_is_lost(control: ControlLayer) -> None:
    counts = {"now": 0, "most": 0, "all": 0}

    def call() -> None:
        counts["now"] += 1
        counts["most"] = max(counts["most"], counts["now"])
        counts["all"] += 1
        counts["now"] -= 1

    def post() -> None:
        for number in range(2_000):
            if number % 10:
                control.post(call)
            else:
                control.run(call)

    threads = [Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    within(lambda: control.run(lambda: None))
    assert counts == {"now": 0, "most": 1, "all": 16_000}


def test_each_of_many_threads_sees_its_own_calls_in_order(control: ControlLayer) -> None:
    seen: list[tuple[int, int]] = []

    def post(thread: int) -> None:
        for number in range(1_000):
            control.post(seen.append, (thread, number))

    threads = [Thread(target=post, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    within(lambda: control.run(lambda: None))
    for thread_number in range(6):
        assert [number for thread, number in seen if thread == thread_number] == list(range(1_000))
