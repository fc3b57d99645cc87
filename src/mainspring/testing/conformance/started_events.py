"""Conformance tests of engines: each attempt that `starts` counts has exactly one `started` event."""

from __future__ import annotations

import pytest

from mainspring.jobs.events import EventKind
from mainspring.jobs.records import Cause, OutcomeKind, Progress, ProgressReport
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, Bench, seconds
from mainspring.testing.conformance.events import BY_OUTCOME, EventReader

ATTEMPTED = pytest.mark.parametrize(
    "kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.HANDED_BACK], ids=lambda kind: kind.value
)


class StartedEventTests(EngineSuite):
    """Tests of `started` events."""

    def test_a_job_that_is_handed_back_has_not_started(self, bench: Bench) -> None:
        listener = EventReader(bench)
        worker, lease = bench.begin()
        for _ in range(3):
            assert bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
            (lease,) = bench.take_when_there(worker, 1)
        bench.complete(worker, lease)
        assert [event.kind for event in listener.read()] == [
            EventKind.SUBMITTED,
            EventKind.STARTED,
            EventKind.COMPLETED,
        ]
        assert bench.record().starts == 1

    def test_a_held_job_that_is_handed_back_after_its_start_has_not_started(self, bench: Bench) -> None:
        worker, lease = bench.begin(after=SOON_SECONDS)
        listener = EventReader(bench)
        assert bench.engine.start(worker, [lease]) == [True]
        assert bench.settle(worker, bench.started(lease), OutcomeKind.HANDED_BACK)
        assert listener.read() == []
        assert bench.record().starts == 0

    def test_a_handler_that_begins_is_told_at_once_and_only_once(self, bench: Bench) -> None:
        listener = EventReader(bench)
        worker, lease = bench.begin()
        assert bench.engine.is_followed
        assert listener.read_kinds() == [(EventKind.SUBMITTED, "job")]
        assert bench.report_begin(worker, lease)
        assert listener.read_kinds() == [(EventKind.STARTED, "job")]
        assert bench.report_begin(worker, lease)
        assert bench.report(worker, lease, 0.5)
        bench.complete(worker, lease)
        assert [event.kind for event in listener.read()] == [EventKind.PROGRESS, EventKind.COMPLETED]
        assert bench.record().starts == 1

    def test_several_reports_of_a_job_in_a_batch_tell_one_start(self, bench: Bench) -> None:
        listener = EventReader(bench)
        worker, lease = bench.begin()
        begins = ProgressReport(lease, None)
        progress = ProgressReport(lease, Progress(1, 2, None, bench.now))
        assert bench.engine.report(worker, [begins, progress, begins]) == [True] * 3
        assert [event.kind for event in listener.read()] == [
            EventKind.SUBMITTED,
            EventKind.STARTED,
            EventKind.PROGRESS,
        ]

    def test_a_report_that_a_handler_begins_changes_nothing_else(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        assert bench.report(worker, lease, 0.5)
        before = bench.record()
        assert bench.report_begin(worker, lease)
        assert bench.record() == before

    @ATTEMPTED
    def test_the_end_of_an_attempt_tells_its_start_if_nothing_else_has(
        self, bench: Bench, kind: OutcomeKind
    ) -> None:
        listener = EventReader(bench)
        worker, lease = bench.begin()
        began = bench.now
        assert bench.settle(worker, lease, kind, due=bench.now, began=began)
        _, started, *ended = listener.read()
        assert (started.kind, started.id, started.type, started.queue) == (
            EventKind.STARTED,
            "job",
            lease.type,
            lease.queue,
        )
        assert started.at == began
        assert [event.kind for event in ended] == BY_OUTCOME[kind]

    def test_every_attempt_has_a_start_of_its_own(self, bench: Bench) -> None:
        listener = EventReader(bench)
        worker, lease = bench.begin()
        for _ in range(2):
            assert bench.report_begin(worker, lease)
            assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now, cause=Cause.FAILURE)
            (lease,) = bench.take_when_there(worker, 1)
        bench.complete(worker, lease)
        kinds = [event.kind for event in listener.read()]
        assert kinds.count(EventKind.STARTED) == bench.record().starts == 3
        assert kinds[1:] == [EventKind.STARTED, EventKind.RETRIED] * 2 + [EventKind.STARTED, EventKind.COMPLETED]

    def test_nothing_is_told_of_a_begin_by_a_worker_that_lost_its_job(self, bench: Bench) -> None:
        worker, stale = bench.begin()
        assert bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        listener = EventReader(bench)
        (lease,) = bench.take_when_there(worker, 1)
        assert not bench.report_begin(worker, stale)
        assert listener.read() == []
        assert bench.report_begin(worker, lease)
        assert listener.read_kinds() == [(EventKind.STARTED, "job")]

    def test_a_start_before_a_process_followed_is_not_told(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        listener = EventReader(bench)
        assert bench.report_begin(worker, lease)
        bench.complete(worker, lease)
        assert listener.read_kinds() == [(EventKind.COMPLETED, "job")]

    # -- crashes

    def test_a_worker_that_dies_before_it_tells_leaves_the_start_to_the_rescue(self, bench: Bench) -> None:
        listener = EventReader(bench)
        worker, _ = bench.begin()
        started = bench.record().started
        bench.engine.leave(worker)  # without an outcome for its job, which counts as a crash
        assert bench.is_rescued(bench.enroll())
        submitted, start, rescued = listener.read()
        assert [event.kind for event in (submitted, start, rescued)] == [
            EventKind.SUBMITTED,
            EventKind.STARTED,
            EventKind.RESCUED,
        ]
        assert start.at == started
        assert bench.record().starts == 1

    def test_a_start_that_was_told_is_not_told_again_by_the_rescue(self, bench: Bench) -> None:
        listener = EventReader(bench)
        worker, lease = bench.begin()
        assert bench.report_begin(worker, lease)
        bench.engine.leave(worker)
        assert bench.is_rescued(bench.enroll())
        assert [event.kind for event in listener.read()] == [
            EventKind.SUBMITTED,
            EventKind.STARTED,
            EventKind.RESCUED,
        ]

    def test_starts_that_were_not_told_are_forgotten_when_no_process_follows(self, bench: Bench) -> None:
        EventReader(bench, 0.3)
        worker, lease = bench.begin()
        bench.pass_time(0.5)
        assert bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
        place = bench.engine.listen(bench.now + seconds(60))
        assert bench.engine.events(place, 10).events == []
