"""Rows of activity: flat counts of minutes, and the rows that `app.activity()` makes of them."""

from datetime import UTC, datetime, timedelta

import msgspec

from mainspring.jobs.activity import MINUTE, Tally
from mainspring.jobs.activity_rows import HOUR, ActivityBatch, ActivityCount, counts_of, rows_of
from mainspring.jobs.histogram import BOUNDS, Histogram

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
MINUTE_OF_NOON = int(NOON.timestamp()) // 60
START = MINUTE_OF_NOON * MINUTE
MAIL = ("mail", "send")


def histogram(*values: int) -> Histogram:
    made = Histogram()
    made.observe_all(values)
    return made


def make_tally() -> Tally:
    return Tally(
        submitted={MAIL: 3},
        attempts={(*MAIL, "completed"): 2, (*MAIL, "failed"): 1},
        retries={MAIL: 1},
        lateness={(*MAIL, "immediate"): histogram(0, 1, 1_500), (*MAIL, "delayed"): histogram(10**12)},
        duration={(*MAIL, "immediate"): histogram(700)},
    )


def test_rows_have_what_was_counted() -> None:
    (row,) = rows_of(counts_of({MINUTE_OF_NOON: make_tally()}))
    assert (row.start, row.length, row.queue, row.type) == (NOON, timedelta(minutes=1), *MAIL)
    assert (row.submitted, row.attempts, row.retries) == (3, {"completed": 2, "failed": 1}, 1)
    assert row.lateness == {"immediate": histogram(0, 1, 1_500), "delayed": histogram(10**12)}
    assert row.duration == {"immediate": histogram(700)}


def test_nothing_is_stored_for_counts_of_zero() -> None:
    counts = list(counts_of({MINUTE_OF_NOON: make_tally()}))
    assert all(count.count for count in counts)
    assert (
        len([count for count in counts if count.measure == "lateness"]) == 3
    )  # two buckets, and one of another kind


def test_only_attempts_and_histograms_have_a_label() -> None:
    labels = {count.measure: count.label for count in counts_of({MINUTE_OF_NOON: make_tally()})}
    assert {measure for measure, label in labels.items() if not label} == {"submitted", "retries"}


def test_the_counts_of_several_processes_make_one_row() -> None:
    counts = [*counts_of({MINUTE_OF_NOON: make_tally()}), *counts_of({MINUTE_OF_NOON: make_tally()})]
    (row,) = rows_of(counts)
    assert (row.submitted, row.attempts["completed"], row.retries) == (6, 4, 2)
    assert (row.duration["immediate"].count, row.duration["immediate"].sum) == (2, 1_400)


def test_rows_are_ordered_by_time_queue_and_type() -> None:
    counts = [
        ActivityCount(start, queue, type_, "submitted", "", 0, 1)
        for start in (START + MINUTE, START)
        for queue in ("b", "a")
        for type_ in ("y", "x")
    ]
    rows = [(row.start, row.queue, row.type) for row in rows_of(counts)]
    assert rows == sorted(rows)
    assert len(rows) == 8


def test_hours_are_rows_of_their_own() -> None:
    minute = ActivityCount(START, *MAIL, "submitted", "", 0, 1)
    hour = ActivityCount(START, *MAIL, "submitted", "", 0, 5, HOUR)
    rows = rows_of([hour, minute])
    assert [(row.length, row.submitted) for row in rows] == [(timedelta(minutes=1), 1), (timedelta(hours=1), 5)]


def test_a_measure_of_a_later_version_is_left_out() -> None:
    (row,) = rows_of([ActivityCount(START, *MAIL, "carbon", "", 0, 1)])
    assert (row.submitted, row.attempts, row.lateness) == (0, {}, {})


def test_a_bucket_of_another_version_is_counted_in_the_next_larger_one() -> None:
    (row,) = rows_of([ActivityCount(START, *MAIL, "duration", "immediate", BOUNDS[2] + 1, 4)])
    assert row.duration["immediate"].counts[3] == 4


def test_a_batch_can_be_encoded() -> None:
    batch = ActivityBatch("process", 7, tuple(counts_of({MINUTE_OF_NOON: make_tally()})))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=ActivityBatch) == batch
