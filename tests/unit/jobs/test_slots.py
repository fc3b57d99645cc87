"""How much a worker asks for: slots, a window that opens and closes, and credit for jobs held ahead."""

import pytest

from mainspring.jobs.worker.slots import (
    AHEAD_FACTOR,
    MAX_WINDOW,
    QUICK_NS,
    SLOW_NS,
    BatchSlots,
    ExecutionKind,
    LongestJob,
    Occupancy,
    Slots,
)

TYPES = ("ping",)


def make(size: int = 4, queues: tuple[str, ...] | None = None) -> Slots:
    return Slots(size, queues)


def test_an_idle_worker_asks_for_as_many_as_it_can_start() -> None:
    assert make(4).demand(TYPES).starts == 4


def test_a_worker_holds_a_few_times_its_threads_ahead() -> None:
    assert make(4).demand(TYPES).ahead == 4 * AHEAD_FACTOR


def test_what_runs_is_not_asked_for_again() -> None:
    slots = make(4)
    slots.started = 3
    assert slots.demand(TYPES).starts == 1


def test_what_is_held_uses_up_credit_and_no_slot() -> None:
    slots = make(4)
    slots.held = 5
    assert (slots.demand(TYPES).starts, slots.demand(TYPES).ahead) == (4, 4 * AHEAD_FACTOR - 5)


def test_a_demand_is_never_negative() -> None:
    slots = make(4)
    slots.started = slots.held = 1_000
    assert (slots.demand(TYPES).starts, slots.demand(TYPES).ahead) == (0, 0)


def test_nothing_is_held_ahead_while_all_slots_are_occupied() -> None:
    slots = make(4)
    slots.started = 4
    assert (slots.demand(TYPES).starts, slots.demand(TYPES).ahead) == (0, 0)


def test_credit_for_held_jobs_can_be_used_up() -> None:
    slots = make(4)
    slots.held = 4 * AHEAD_FACTOR
    assert slots.demand(TYPES).ahead == 0


@pytest.mark.parametrize("slots", [make(), BatchSlots(100, None, make())], ids=["each job", "a batch"])
def test_a_suspect_is_asked_for_unless_the_caller_wants_none(slots: Slots) -> None:
    assert slots.demand(TYPES).suspects is slots.demand(TYPES, suspects=True).suspects is True
    assert slots.demand(TYPES, suspects=False).suspects is False


@pytest.mark.parametrize("kind", ExecutionKind)
def test_slots_know_where_handlers_run_and_how_many_jobs_one_call_takes(kind: ExecutionKind) -> None:
    slots = Slots(4, None, kind=kind)
    batch = BatchSlots(100, None, slots)
    assert [(each.kind, each.batch) for each in (slots, batch)] == [(kind, None), (kind, 100)]


def test_types_and_queues_are_passed_on() -> None:
    demand = make(4, ("orders", "mail")).demand(TYPES)
    assert (demand.types, demand.queues) == (("ping",), ("orders", "mail"))


def test_places_that_batch_handlers_use_are_not_asked_for() -> None:
    slots = make(4)
    slots.used_by_batches = 3
    assert slots.demand(TYPES).starts == 1


def test_the_window_opens_while_jobs_start_quickly_and_there_is_more() -> None:
    slots = make(4)
    asked = []
    for _ in range(4):
        asked.append(slots.demand(TYPES).starts)
        slots.record_wait(QUICK_NS - 1)
        slots.adapt(is_more=True)
    assert asked == [4, 12, 20, 36]


def test_the_window_has_an_end() -> None:
    slots = make(4)
    for _ in range(50):
        slots.adapt(is_more=True)
    assert slots.demand(TYPES).starts == 4 + 2 * MAX_WINDOW


def test_the_window_stays_shut_without_more_work() -> None:
    slots = make(4)
    slots.adapt(is_more=False)
    assert slots.demand(TYPES).starts == 4


def test_the_window_is_halved_each_time_that_jobs_had_to_wait() -> None:
    slots = make(4)
    for _ in range(4):
        slots.adapt(is_more=True)
    asked = [slots.demand(TYPES).starts]
    for _ in range(6):
        slots.record_wait(SLOW_NS + 1)
        slots.adapt(is_more=True)
        asked.append(slots.demand(TYPES).starts)
    assert asked == [4 + 2 * window for window in (32, 16, 8, 4, 2, 1, 0)]


@pytest.mark.parametrize("wait", [QUICK_NS, SLOW_NS])
def test_the_window_stays_as_it_is_in_between(wait: int) -> None:
    slots = make(4)
    slots.adapt(is_more=True)
    wide = slots.demand(TYPES).starts
    slots.record_wait(wait)
    slots.adapt(is_more=True)
    assert slots.demand(TYPES).starts == wide


def test_the_longest_wait_decides() -> None:
    slots = make(4)
    slots.adapt(is_more=True)
    wide = slots.demand(TYPES).starts
    for wait in (1, SLOW_NS + 1, 1):
        slots.record_wait(wait)
    slots.adapt(is_more=True)
    assert slots.demand(TYPES).starts < wide


def test_a_wait_counts_once() -> None:
    slots = make(4)
    slots.record_wait(SLOW_NS + 1)
    slots.adapt(is_more=True)
    close_window = slots.demand(TYPES).starts
    slots.adapt(is_more=True)
    assert slots.demand(TYPES).starts > close_window


def test_the_window_is_shut_when_a_job_found_no_slot_in_time() -> None:
    slots = make(4)
    for _ in range(5):
        slots.adapt(is_more=True)
    slots.close_window()
    assert slots.demand(TYPES).starts == 4
    slots.adapt(is_more=True)
    assert slots.demand(TYPES).starts == 4
    slots.adapt(is_more=True)
    assert slots.demand(TYPES).starts > 4


# -- batch handlers


def test_a_batch_handler_asks_for_one_call_and_holds_nothing_ahead() -> None:
    demand = BatchSlots(100, ("orders",), make()).demand(TYPES)
    assert (demand.types, demand.starts, demand.ahead, demand.queues) == (TYPES, 100, 0, ("orders",))


def test_a_batch_handler_asks_for_nothing_while_one_of_its_jobs_is_there() -> None:
    slots = BatchSlots(100, None, make())
    slots.started = 1
    assert slots.demand(TYPES).starts == 0


def test_a_batch_handler_never_opens_a_window() -> None:
    slots = BatchSlots(100, None, make())
    slots.adapt(is_more=True)
    assert (slots.demand(TYPES).starts, slots.wants_ahead) == (100, False)


def test_a_batch_handler_that_found_no_place_waits_until_there_is_one() -> None:
    threads = make(1)
    slots = BatchSlots(100, None, threads)
    threads.started = 1
    asked = [slots.demand(TYPES).starts]
    slots.close_window()
    asked.append(slots.demand(TYPES).starts)
    threads.started = 0
    asked.append(slots.demand(TYPES).starts)
    assert asked == [100, 0, 100]


# -- as text


@pytest.mark.parametrize(
    ("occupancy", "text"),
    [
        (Occupancy(ExecutionKind.LOOP, 3, 8), "3 of 8 slots (loop) of this worker are occupied"),
        (
            Occupancy(ExecutionKind.THREADS, 0, 1, is_batch=True),
            "0 of 1 slots (threads) of this worker are occupied",
        ),
        (Occupancy(ExecutionKind.THREADS, 1, 1, is_batch=True), "a call of this batch handler runs here already"),
        (
            Occupancy(ExecutionKind.THREADS, 1, 1, LongestJob(61.4, "order-42", "pay")),
            "1 of 1 slots (threads) of this worker are occupied, the longest by job order-42 (pay) for 61 s",
        ),
    ],
)
def test_occupancy_says_how_many_slots_are_occupied_and_by_which_job(occupancy: Occupancy, text: str) -> None:
    assert str(occupancy) == text


# -- jobs that must not start a second time


def test_jobs_that_run_at_most_once_are_not_prefetched() -> None:
    slots = make(4)
    slots.adapt(is_more=True)
    slots.started = slots.started_at_most_once = 3
    demand = slots.demand(("ping", "pong"), at_most_once=TYPES)
    assert (demand.at_most_once, demand.at_most_once_starts) == (TYPES, 1)
    assert demand.starts > 1
    slots.started_at_most_once = 5
    assert slots.demand(TYPES, at_most_once=TYPES).at_most_once_starts == 0
    assert (slots.demand(TYPES).at_most_once, slots.demand(TYPES).at_most_once_starts) == ((), 0)


def test_an_idle_worker_asks_for_as_many_jobs_that_run_at_most_once_as_it_has_slots() -> None:
    assert make(4).demand(TYPES, at_most_once=TYPES).at_most_once_starts == 4
    assert make(4).demand(TYPES).at_most_once_starts == 0


def test_a_batch_handler_whose_jobs_run_at_most_once_asks_for_one_call() -> None:
    slots = BatchSlots(3, None, make(4))
    demand = slots.demand(TYPES, at_most_once=TYPES)
    assert (demand.at_most_once, demand.at_most_once_starts) == (TYPES, 3)
    slots.started = 1
    assert slots.demand(TYPES, at_most_once=TYPES).at_most_once_starts == 0
