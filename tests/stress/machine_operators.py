"""Rules of the Hypothesis machine for operators: limits, queues and schedules, and firing occurrences."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule

from mainspring.jobs.commands import DropLimit, PauseQueue, PauseSchedule, PutSchedule, RemoveSchedule
from mainspring.jobs.limits import Limit
from mainspring.jobs.recurrence.schedule_records import Firing, OccurrenceKind, Overlap
from mainspring.testing.conformance.bench import seconds
from mainspring.testing.conformance.schedule_driver import ScheduleDriver
from mainspring.testing.conformance.statistics import count_naively
from tests.stress.machine_users import QUEUES, UserMachine, places

NAMES = ("hourly", "nightly")
FAMILIES = ("all", "by tenant")
RATE = Limit(2, seconds(10))

names = st.sampled_from(NAMES)


class OperatorMachine(UserMachine):
    """Stores limits, pauses and schedules, and fires schedules."""

    def prepare(self) -> None:
        super().prepare()
        self.timetable = ScheduleDriver(self.bench)
        assert self.bench.limit("rate", RATE.most, per=10)
        self.model.put_limit("rate", RATE)
        for family in FAMILIES:
            self.arrange_limit(family, most=1)

    # -- limits and queues

    @rule(family=st.sampled_from(FAMILIES), most=st.integers(0, 3))
    def arrange_limit(self, family: str, most: int) -> None:
        if most:
            assert self.bench.limit(family, most) == self.model.put_limit(family, Limit(most, None))
        else:
            assert self.bench.arrange(DropLimit(family)) == self.model.drop_limit(family)

    @rule(queue=st.sampled_from(QUEUES), place=places)
    def arrange_queue(self, queue: str, place: int) -> None:
        is_paused = place % 4 == 0
        is_changed = self.model.pause_queue(queue, is_paused=is_paused)
        assert self.bench.arrange(PauseQueue(queue, is_paused)) == is_changed

    # -- schedules

    @rule(name=names, overlap=st.sampled_from(Overlap), place=places)
    def put_schedule(self, name: str, overlap: Overlap, place: int) -> None:
        stored = self.model.schedules.get(name)
        current = stored.revision if stored else None
        expected = current if place % 4 else place % 3 or None
        record = self.timetable.record(name, after=place % 7, overlap=overlap)
        is_changed = self.model.put_schedule(record, expected, self.bench.now)
        assert self.bench.arrange(PutSchedule(record, expected)) == is_changed

    @precondition(lambda self: self.model.schedules)
    @rule(name=names, place=places)
    def arrange_schedule(self, name: str, place: int) -> None:
        if place % 8 == 0:
            assert self.bench.arrange(RemoveSchedule(name)) == self.model.remove_schedule(name)
            return
        due = self.bench.now + seconds(place % 7)
        is_paused = place % 3 == 0
        is_changed = self.model.pause_schedule(name, due, is_paused=is_paused)
        assert self.bench.arrange(PauseSchedule(name, is_paused, due)) == is_changed

    @precondition(lambda self: self.model.schedules)
    @rule(place=places)
    def fire(self, place: int) -> None:
        """Fire twice: the second firing is refused. Sometimes the first one expects an outdated state, too."""
        stored = [*self.model.schedules.values()][place % len(self.model.schedules)]
        expected = (stored.next_due or 0) + (place % 8 == 0)
        occurrences = [expected + number for number in range(place % 3)]
        records = [self.timetable.occurrence(expected, OccurrenceKind.MISSED)] * (place % 5 == 0)
        firing = Firing(
            stored.name,
            stored.revision - (place % 8 == 1),
            expected,
            expected + seconds(5),
            expected,
            tuple(self.timetable.job(stored.name, occurrence) for occurrence in occurrences),
            stored.overlap,
            tuple(records),
        )
        for fired in self.engine.fire([firing, firing]):
            assert fired == self.model.fire(firing, self.bench.now, fired.skipped_for)

    @invariant()
    def the_statistics_are_those_of_a_scan(self) -> None:
        statistics = self.engine.statistics()
        assert statistics.groups == count_naively(self.engine, statistics.at)

    @invariant()
    def the_arrangements_are_alike(self) -> None:
        assert self.engine.schedules() == sorted(self.model.schedules.values(), key=lambda record: record.name)
        assert set(self.engine.paused_queues()) == self.model.paused
        for name in NAMES:
            assert self.engine.occurrences(name, 1_000) == self.model.occurrences.get(name, [])[::-1]
