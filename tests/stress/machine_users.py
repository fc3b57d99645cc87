"""Base of the Hypothesis machine that compares an engine with the model, and its rules for users."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import asdict

from mainspring.jobs.commands import ChangeLimits, Delete, Reopen, Replay, Reschedule
from mainspring.jobs.engine import Engine, Retention
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Lease, NewJob, Query, UniqueKey
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench, seconds
from tests.stress.engine_model import EngineModel, Job

TYPES = ("ping", "pong")
QUEUES = ("default", "other")
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)
ALL, A, B, RATE = (
    bucket_of(*names) for names in (("all",), ("by tenant", "a"), ("by tenant", "b"), ("rate", "a"))
)

ids = st.sampled_from("abcdefghijklmnopqrstuvwxyz")
delays = st.sampled_from([-100.0, -20.0, -1.0, 0.0, 0.3, 0.9, 5.0, 60.0])
places = st.integers(0, 1_000)
limits = st.sampled_from([(), (ALL,), (A,), (B,), (ALL, A), (RATE,), (A, RATE)])
uniques = st.sampled_from(
    [
        UniqueKey("key", ALIVE),
        UniqueKey("key", (JobStatus.PENDING, JobStatus.COMPLETED), seconds(30)),
        UniqueKey("key", (JobStatus.PENDING,), replaces=True),
        UniqueKey("another key", tuple(JobStatus)),
    ]
)
jobs = st.fixed_dictionaries(
    {"job_id": ids, "type": st.sampled_from(TYPES), "priority": st.integers(0, 2), "after": delays},
    optional={
        "queue": st.sampled_from(QUEUES),
        "place": st.tuples(st.sampled_from(["s", "t"]), st.booleans()),
        "limits": limits,
        "unique": uniques,
        "expires": st.sampled_from([1.0, 30.0, 90.0]),
        "headers": st.just({"trace": "1"}),
        "search": st.sampled_from([("order_id=1",), ("order_id=2", "customer")]),
    },
)
ages = st.sampled_from([None, 0, seconds(5), seconds(60)])
retentions = st.builds(Retention, ages, ages, ages, st.sampled_from([None, 1, 3]))


class UserMachine(RuleBasedStateMachine):
    """Makes the same calls of an engine and of the model."""

    def make_engine(self, clock: ManualClock) -> Engine:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        clock = ManualClock()
        self.bench = Bench(self.make_engine(clock), clock)
        self.engine = self.bench.engine
        self.model = EngineModel()
        self.leases: list[tuple[int, Lease]] = []  # all leases so far, with their workers
        self.copies = 0
        self.heard = self.engine.listen(2**60)
        self.prepare()

    def prepare(self) -> None:
        """Submit the first jobs: in a sequence, under limits, without policies, and due later."""
        policies: list[dict[str, Any]] = [{"place": ("s", False)}, {"limits": (ALL, A)}, {"limits": (RATE,)}, {}]
        self.submit(
            [
                {"job_id": name, "type": TYPES[place % 2], "after": -1.0, **policies[place % len(policies)]}
                for place, name in enumerate("abcdefghijkl")
            ]
            + [{"job_id": "m", "after": 0.3}, {"job_id": "n", "after": 0.9, "expires": 30.0}]
        )

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()

    def worker(self, place: int) -> int:
        return self.model.workers[place % len(self.model.workers)]

    # -- submitters

    @rule(batch=st.lists(jobs, min_size=1, max_size=6))
    def submit(self, batch: list[dict[str, Any]]) -> None:
        new = [self.describe(payload=b"%d" % number, **job) for number, job in enumerate(batch)]
        assert self.engine.submit(new) == [self.model.submit(job, self.bench.now) for job in new]

    @rule(job=jobs, number=st.integers(2, 5))
    def submit_alike(self, job: dict[str, Any], number: int) -> None:
        """Submit jobs that differ in nothing but their ids, as a batch mostly does."""
        self.copies += number
        self.submit([job | {"job_id": f"copy {self.copies - place}"} for place in range(number)])

    def describe(self, place: tuple[str | None, bool] = (None, False), **options: Any) -> NewJob:
        """Describe a job, with its place in a sequence and whether it would step aside."""
        sequence, steps_aside = place
        return self.bench.job(sequence=sequence, steps_aside=steps_aside, **options)

    @rule(place=places)
    def cancel(self, place: int) -> None:
        job_id = self.choose_job(place, JobStatus.PENDING, JobStatus.RUNNING)
        answer = self.bench.cancel(job_id)
        assert (answer.is_done, answer.status) == self.model.cancel(job_id, self.bench.now)

    @rule(place=places, delay=delays, verb=st.sampled_from(["delete", "reopen", "replay"]))
    def change_ended(self, place: int, delay: float, verb: str) -> None:
        now, due = self.bench.now, self.bench.now + seconds(delay)
        if verb == "delete":
            job_id = self.choose_job(place, JobStatus.COMPLETED, JobStatus.CANCELED)
            assert self.bench.change(Delete(job_id)).is_done == self.model.delete(job_id)
            return
        job_id = self.choose_job(place, JobStatus.FAILED)
        if verb == "reopen":
            assert self.bench.change(Reopen(job_id, due)).is_done == self.model.reopen(job_id, due)
        else:
            self.copies += 1
            replay = Replay(job_id, f"copy {self.copies}", due)
            assert self.bench.change(replay).is_done == self.model.replay(job_id, replay.new_id, due, now)

    @rule(place=places, delay=delays, limits=limits)
    def change_pending(self, place: int, delay: float, limits: tuple[str, ...]) -> None:
        job_id, due = self.choose_job(place, JobStatus.PENDING), self.bench.now + seconds(delay)
        if place % 2:
            assert self.bench.change(Reschedule(job_id, due)).is_done == self.model.reschedule(job_id, due)
        else:
            assert self.bench.change(ChangeLimits(job_id, limits)).is_done == self.model.change_limits(
                job_id, limits
            )

    @rule(retention=retentions)
    def prune(self, retention: Retention) -> None:
        pruned = self.engine.prune(retention)
        assert pruned.deleted == self.model.prune(retention, self.bench.now)

    def choose_job(self, place: int, *statuses: JobStatus) -> str:
        """Choose a job, mostly one that the command is meant for."""
        meant = [job_id for job_id, job in self.model.jobs.items() if job["status"] in statuses]
        others = [*self.model.jobs, "nowhere"]
        return others[place % len(others)] if place % 4 == 0 or not meant else meant[place % len(meant)]

    # -- time

    @rule(duration=st.sampled_from([0.2, 0.8, 4.0, 40.0]))
    def pass_time(self, duration: float) -> None:
        self.bench.pass_time(duration)

    # -- invariants

    @invariant()
    def the_records_are_alike(self) -> None:
        records = [asdict(record) for record in self.engine.find(Query(limit=1_000)).records]
        assert records == [{name: job[name] for name in record} for record, job in self.pairs(records)]

    def pairs(self, records: list[Job]) -> list[tuple[Job, Job]]:
        assert [record["id"] for record in records] == list(self.model.jobs)
        return list(zip(records, self.model.jobs.values(), strict=True))

    @invariant()
    def the_counts_are_alike(self) -> None:
        assert self.engine.counts() == self.model.counts()

    @invariant()
    def the_events_are_alike(self) -> None:
        """Compare the events of one step: those of one job in order, those of several jobs in any order."""
        page = self.engine.events(self.heard, 1_000)
        self.heard = page.end
        heard = [(event.kind, event.id) for event in page.events]
        told, self.model.told = self.model.told, []
        assert sorted(heard, key=lambda event: event[1]) == sorted(told, key=lambda event: event[1])
