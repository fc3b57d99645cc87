"""The timing wheel of a pool, as its statistics show it."""

from datetime import timedelta

from mainspring import ThreadPool
from mainspring.testing import ManualClock
from mainspring.timing import WheelStatistics

FAR = timedelta(days=400)


def timers(pool: ThreadPool) -> WheelStatistics:
    return pool.statistics().timers


def test_a_new_pool_has_no_timers(pool: ThreadPool) -> None:
    found = timers(pool)
    assert (found.pending, found.open, sum(found.occupancy), found.fullest_slot) == (0, 0, 0, 0)


def test_delayed_tasks_of_all_runners_are_pending_until_they_run_or_are_canceled(
    pool: ThreadPool, clock: ManualClock
) -> None:
    pool.post(print, delay=60)
    pool.sequenced().post(print, delay=FAR)
    handle = pool.parallel(2).post(print, delay=FAR)
    counts = [timers(pool).pending]
    handle.cancel()
    counts.append(timers(pool).pending)
    clock.advance(60)
    counts.append(timers(pool).pending)
    assert counts == [3, 2, 1]


def test_timers_are_counted_by_level_and_by_slot(pool: ThreadPool) -> None:
    for _ in range(5):
        pool.post(print, delay=FAR)
    pool.post(print, delay=3_600)
    found = timers(pool)
    assert found.open + sum(found.occupancy) == found.pending == 6
    assert found.fullest_slot == 5
    assert sorted(filter(None, found.occupancy)) == [1, 5]
    assert [bool(slots) for slots in found.slots] == [bool(number) for number in found.occupancy]
    assert list(found.slot_spans) == sorted(found.slot_spans)


def test_a_repetition_is_one_timer(pool: ThreadPool, clock: ManualClock) -> None:
    beat = pool.repeat(lambda: None, every=10)
    before = timers(pool).pending
    clock.advance(35)
    after = timers(pool).pending
    beat.stop()
    assert (before, after, timers(pool).pending) == (1, 1, 0)


def test_a_pool_that_was_shut_down_has_no_timers(clock: ManualClock) -> None:
    with ThreadPool(1, clock=clock) as pool:
        pool.post(print, delay=60)
    assert timers(pool).pending == 0
