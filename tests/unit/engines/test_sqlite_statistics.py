"""Statistics of a SQLite file: bounded counts, bounded work, and the search for the fullest slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.engines.sqlite import statistics, upcoming_jobs, upcoming_slots
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.engines.sqlite.statistics import count_jobs, evaluate_by, limited_jobs
from mainspring.engines.sqlite.upcoming_slots import find_fullest_slot
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.store_statistics import HOT_JOBS, SLOT_MICROSECONDS, JobGroup
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import TYPE, Bench, seconds
from mainspring.testing.conformance.statistics import count_naively

MOST = 5
# ?1 lane, ?2 the first due time, ?3 the time between two of them, ?4 how many
FILL = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?4)
INSERT INTO jobs (id, lane, due, ready, created, payload, codec)
SELECT 'filled ' || (SELECT count(*) FROM jobs) || '-' || n, ?1, ?2 + n * ?3, ?2 + n * ?3, 0, '{}', 'json'
FROM numbers
"""


@pytest.fixture
def connection(path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(path))
    yield connection
    connection.close()


def counted(connection: apsw.Connection, now: int, most: int = MOST) -> tuple[JobGroup, ...]:
    with connection:
        counts = count_jobs(connection, now, limited_jobs, most)
    return counts.add_up(paused=(), find_full=evaluate_by(connection, now))


# -- counts that stop


@pytest.mark.parametrize(
    "kind",
    [
        {"after": -1},
        {"after": 60},
        {"after": -1, "limits": (bucket_of("all"),)},
        {"after": 60, "limits": (bucket_of("all"),)},
        {"after": 60, "sequence": "s"},
    ],
)
def test_a_count_stops_and_says_so(bench: Bench, connection: apsw.Connection, kind: dict[str, object]) -> None:
    bench.submit(*"abcde", **kind)
    (group,) = counted(connection, bench.now)
    assert (group.due + group.blocked + group.scheduled, group.is_exact) == (5, True)
    bench.submit("f", "g", **kind)
    (group,) = counted(connection, bench.now)
    assert (group.due + group.blocked + group.scheduled, group.is_exact) == (5, False)


def test_blocked_jobs_running_jobs_and_dead_letters_are_counted_so_far_only(
    bench: Bench, connection: apsw.Connection
) -> None:
    for number in range(MOST + 2):
        bench.bury(f"letter {number}", queue="letters")
    bench.submit(*"abcdefgh", sequence="s", queue="sequence")
    bench.submit(*"ijklmnop", queue="running")
    bench.take(bench.enroll(), queues=("running",))
    found = {group.queue: group for group in counted(connection, bench.now)}
    assert (found["letters"].dead_letters, found["letters"].is_exact) == (MOST, False)
    assert (found["sequence"].due, found["sequence"].blocked, found["sequence"].is_exact) == (1, MOST, False)
    assert (found["running"].running, found["running"].is_exact) == (MOST, False)


def test_jobs_that_are_due_do_not_hide_scheduled_ones(bench: Bench, connection: apsw.Connection) -> None:
    bench.submit(*"abcdefgh", limits=(bucket_of("all"),))
    bench.submit("later", limits=(bucket_of("all"),), after=60)
    (group,) = counted(connection, bench.now)
    assert (group.due, group.is_exact) == (MOST, False)
    assert group.scheduled > 0


@pytest.mark.parametrize("number", [1, 8])
def test_scheduled_jobs_are_counted_beside_due_and_held_ones(
    bench: Bench, connection: apsw.Connection, number: int
) -> None:
    bench.submit("held", after=0.5)
    assert len(bench.take(bench.enroll(), starts=0, ahead=seconds(1))) == 1
    bench.submit(*(f"due {n}" for n in range(number)))
    bench.submit("later", after=60)
    (group,) = counted(connection, bench.now)
    assert (group.due, group.scheduled, group.is_exact) == (min(number, MOST), 2, number <= MOST)


def test_groups_beyond_the_largest_number_are_not_evaluated(
    bench: Bench, connection: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.limit("all", 1)
    for tenant in "abcde":
        bench.submit(f"{tenant}1", f"{tenant}2", limits=(bucket_of("all", tenant),))
    (exact,) = counted(connection, bench.now, 100)
    assert (exact.due, exact.blocked, exact.is_exact) == (10, 0, True)
    monkeypatch.setattr(statistics, "MAX_GROUPS", 3)
    (group,) = counted(connection, bench.now, 100)
    assert (group.due, group.blocked, group.scheduled) == (8, 0, 0)  # of two groups, only the heads
    assert not group.is_exact


def test_heads_beyond_the_largest_number_are_not_read(
    bench: Bench, connection: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in "abcde":
        bench.submit(tenant, limits=(bucket_of("all", tenant),))
    monkeypatch.setattr(statistics, "MAX_HEADS", 2)
    monkeypatch.setattr(statistics, "FEWEST_HEADS", 2)
    (group,) = counted(connection, bench.now, 100)
    assert (group.due, group.is_exact) == (5, False)


def test_parked_groups_are_blocked(bench: Bench, connection: apsw.Connection) -> None:
    bench.limit("all", 1)
    bench.begin("head", limits=(bucket_of("all"),))
    bench.submit("a", "b", limits=(bucket_of("all"),))
    assert bench.take(bench.enroll()) == []  # the engine parks the group
    assert connection.execute("SELECT count(*) FROM parked").get == 1
    (group,) = counted(connection, bench.now)
    assert (group.due, group.blocked) == (0, 2)


# -- bounded work


@pytest.mark.parametrize("is_later", [False, True])
def test_the_work_does_not_grow_with_the_number_of_jobs(
    bench: Bench,
    connection: apsw.Connection,
    is_later: bool,  # noqa: FBT001
) -> None:
    bench.submit("a", after=60)
    bench.submit("b", after=-60)
    now = bench.now
    steps: list[int] = []
    first = now + seconds(60) if is_later else now - seconds(600)
    for number in (3_000, 30_000):
        connection.execute(FILL, (1, first, 1_000, number))
        first += number * 1_000  # so that no slot has more jobs than before
        ticks = count()
        connection.set_progress_handler(lambda ticks=ticks: next(ticks) < 0, 100)  # type: ignore[misc]
        counted(connection, now, 500)
        find_fullest_slot(connection, now, lookahead=1_000, most=500)
        connection.set_progress_handler(None)
        steps.append(next(ticks))
    assert steps[1] < steps[0] * 1.5 + 10, steps


# -- the fullest slot

DUES = st.lists(st.integers(1, 40 * SLOT_MICROSECONDS), max_size=12)
CROWDS = st.lists(st.tuples(st.integers(0, 39), st.integers(1, 30)), max_size=3)


@given(dues=DUES, crowds=CROWDS)
def test_no_slot_with_as_many_jobs_as_a_step_is_missed(dues: list[int], crowds: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upcoming_slots, "STEP", 4)
        bench = Bench(MemoryEngine(clock=(clock := ManualClock())), clock)
        now = bench.now
        base = now - now % SLOT_MICROSECONDS + SLOT_MICROSECONDS
        instants = [base + due for due in dues]
        for place, size in crowds:
            instants += [base + place * SLOT_MICROSECONDS + 7] * size
        if instants:
            jobs = [bench.job(f"{number}", after=(due - now) / 1e6) for number, due in enumerate(instants)]
            assert bench.engine.submit(jobs) == [None] * len(jobs)
        slot = bench.engine.statistics().fullest_slot
        bench.engine.close()
    slots = Counter(instant // SLOT_MICROSECONDS for instant in instants)
    if not instants:
        assert slot is None
        return
    assert slot is not None
    assert slot.count == slots[slot.since // SLOT_MICROSECONDS]
    in_slot = Counter(
        instant for instant in instants if instant // SLOT_MICROSECONDS == slot.since // SLOT_MICROSECONDS
    )
    assert slot.at_once == max(in_slot.values())
    if max(slots.values()) >= 4 or len(instants) < 4:
        assert slot.count == max(slots.values())


def test_the_search_for_the_fullest_slot_ends_in_time(bench: Bench, connection: apsw.Connection) -> None:
    bench.submit("a", after=60)
    now = bench.now
    connection.execute(FILL, (1, now + seconds(60), seconds(1), 2_000))
    connection.execute(FILL, (1, now + seconds(3_600), 0, 700))
    far = find_fullest_slot(connection, now, lookahead=10_000)
    assert far is not None
    assert (far.count, far.at_once) == (700, 700)
    assert far.average < 1
    near = find_fullest_slot(connection, now, lookahead=1_000)
    assert near is not None
    assert near.count < 10


def test_among_slots_with_very_many_jobs_the_earliest_is_returned(
    bench: Bench, connection: apsw.Connection
) -> None:
    for queue in "abcdefghijk":
        bench.submit(queue, after=60, queue=queue)
    lanes = [row[0] for row in connection.execute("SELECT id FROM lanes ORDER BY id")]
    now = bench.now
    connection.execute(FILL, (lanes[0], now + seconds(200), 0, HOT_JOBS + 300))
    connection.execute(FILL, (lanes[1], now + seconds(100), 0, HOT_JOBS + 200))
    connection.execute(FILL, (lanes[2], now + seconds(90), 0, HOT_JOBS - 1))
    slot = find_fullest_slot(connection, now, lookahead=10_000)
    assert slot is not None
    assert (slot.queue, slot.count, slot.at_once) == ("b", HOT_JOBS + 200, HOT_JOBS + 200)
    one_by_one = find_fullest_slot(connection, now, lookahead=200_000)
    assert one_by_one is not None
    assert (one_by_one.queue, one_by_one.count) == ("a", HOT_JOBS + 300)


def test_an_even_load_has_an_even_average(bench: Bench, connection: apsw.Connection) -> None:
    bench.submit("a", after=1)
    now = bench.now
    connection.execute(FILL, (1, now, SLOT_MICROSECONDS // 300, 9_000))
    slot = find_fullest_slot(connection, now, lookahead=9_000)
    assert slot is not None
    assert 290 <= slot.count <= 310
    assert 200 <= slot.average <= 310


def test_a_queue_of_another_lane_is_found_too(bench: Bench, connection: apsw.Connection) -> None:
    bench.submit("a", after=60)
    bench.submit("b", after=60, queue="other")
    (lane,) = (connection.execute("SELECT id FROM lanes WHERE queue = 'other'").get,)
    connection.execute(FILL, (lane, bench.now + seconds(100), 0, 400))
    slot = find_fullest_slot(connection, bench.now, lookahead=10_000)
    assert slot is not None
    assert (slot.queue, slot.type, slot.count) == ("other", TYPE, 400)


def test_the_counts_of_a_file_are_those_of_a_scan(bench: Bench) -> None:
    bench.limit("all", 1)
    bench.begin("head", limits=(bucket_of("all"),))
    bench.submit(*"abc", limits=(bucket_of("all"),))
    bench.submit(*"def", sequence="s", limits=(bucket_of("all"),))
    found = bench.engine.statistics()
    assert found.groups == count_naively(bench.engine, found.at)


# -- scheduled jobs by time


@given(
    times=st.lists(st.integers(0, 99), max_size=60),
    edges=st.lists(st.integers(0, 99), min_size=2, max_size=8).map(sorted),
    few=st.sampled_from([2, 1_000]),
)
def test_scheduled_jobs_by_time_are_those_that_a_scan_finds(times: list[int], edges: list[int], few: int) -> None:
    engine = MemoryEngine(clock=ManualClock())
    bench = Bench(engine, ManualClock())
    try:
        begin = bench.now + seconds(3_600)
        jobs = [replace(bench.job(f"{number}"), due=begin + time) for number, time in enumerate(times)]
        assert engine.submit(jobs) == [None] * len(jobs)
        expected = tuple(sum(low <= time < high for time in times) for low, high in pairwise(edges))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upcoming_jobs, "FEW", few)
            found = engine.upcoming([begin + edge for edge in edges])
        assert [group.counts for group in found] == ([expected] if any(expected) else [])
    finally:
        engine.close()


def test_a_period_with_many_jobs_is_counted_up_to_a_bound(
    bench: Bench, connection: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upcoming_jobs, "FEW", 4)
    monkeypatch.setattr(upcoming_jobs, "MAX_IN_PERIOD", 3)
    begin = bench.now + seconds(3_600)
    jobs = [replace(bench.job(f"{number}"), due=begin + number) for number in range(12)]
    assert bench.engine.submit(jobs) == [None] * len(jobs)
    (group,) = bench.engine.upcoming([begin, begin + 2, begin + 12, begin + 20])
    assert group.counts == (2, 3, 0)
