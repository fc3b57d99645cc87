"""Every call of an engine fails, before its effect and after it, while a worker runs jobs of many kinds.

The ledger knows what callers were told and what handlers did; it is not in the store. `Errors` decides by a seed
which call fails next. A scenario goes on until every call has failed in every way. Then it compares the ledger
with the store.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

from mainspring import (
    Concurrency,
    EngineUnavailable,
    JobFunction,
    JobInfo,
    JobStatus,
    Mainspring,
    Retry,
    Snooze,
    current_job,
)
from mainspring.app import Runtime
from mainspring.clock import Clock
from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.audit import AuditQuery
from mainspring.jobs.engine import Engine
from mainspring.jobs.records import Query
from mainspring.testing import ManualClock

WRITES = (
    "submit",
    "change",
    "arrange",
    "fire",
    "enroll",
    "announce",
    "renew",
    "take",
    "start",
    "report",
    "settle",
    "sweep",
    "prune",
    "record_activity",
)
READS = (
    "find",
    "counts",
    "count_up_to",
    "situation",
    "statistics",
    "upcoming",
    "workers",
    "backlog",
    "queues",
    "paused_queues",
    "limits",
    "redactions",
    "schedules",
    "occurrences",
    "dead_letter_handlers",
    "audit_entries",
    "activity",
    "spent",
    "tokens",
)
RARE = ("enroll", "renew", "sweep", "fire", "prune", "record_activity")
"""Calls that fail one after another, because a worker makes few of them."""
LEAVE = "leave"
BEFORE, AFTER = "before", "after"
AT_ONCE = Retry(max_attempts=10, base=0.05, factor=1, jitter=0)
MOST_ROUNDS = 60
FAR = 1_000_000
"""Seconds until jobs are due that no worker starts."""


class Unexpected(RuntimeError):
    """An error that no caller of the engine knows."""


class Fault(NamedTuple):
    """One way in which a call fails."""

    verb: str
    moment: str
    error: str

    def exception(self) -> Exception:
        if self.error == "unexpected":
            return Unexpected(f"{self}")
        return EngineUnavailable(engine="test", reason=f"{self}", remedy="try again")


FailAfter: TypeAlias = Callable[[Callable[[], Any], Fault], Any]
"""Makes a call and fails after its effect, as the store can fail then."""


Drive: TypeAlias = Callable[[Callable[[], bool]], bool]
"""Lets time pass, on a manual clock or in real time, until a condition is met; returns False if it never is."""


class Errors:
    """The errors that are still to come, and those that have come."""

    def __init__(self, faults: Sequence[Fault], chance: Random) -> None:
        self._chance = chance
        self._lock = Lock()  # guards the following attributes
        self._coming: defaultdict[str, list[Fault]] = defaultdict(list)
        self._calls_until: Counter[str] = Counter()
        self.raised: Counter[str] = Counter()
        """How many errors each call has had."""
        for fault in faults:
            self._coming[fault.verb].append(fault)
        for verb, coming in self._coming.items():
            chance.shuffle(coming)
            self._calls_until[verb] = self._gap(verb)

    def left(self, verbs: Sequence[str]) -> list[Fault]:
        """Return the faults of these calls that have not happened yet."""
        with self._lock:
            return [fault for verb in verbs for fault in self._coming[verb]]

    def end(self) -> None:
        """Let no further call fail but the one by which the worker leaves."""
        with self._lock:
            for verb in self._coming.keys() - {LEAVE}:
                self._coming[verb].clear()

    def _gap(self, verb: str) -> int:
        """Return how many calls succeed before the next one fails."""
        return 0 if verb in (*RARE, *READS, LEAVE) else self._chance.randrange(4)

    def inject(self, engine: Engine, fail_after: FailAfter) -> None:
        """Replace the calls of an engine by calls that fail."""
        for verb in (*WRITES, *READS, LEAVE):
            setattr(engine, verb, partial(self._call, verb, getattr(engine, verb), fail_after))

    def _call(
        self, verb: str, call: Callable[..., Any], fail_after: FailAfter, *arguments: Any, **options: Any
    ) -> Any:
        fault = self._next(verb)
        if fault is None:
            return call(*arguments, **options)
        if fault.moment == BEFORE:
            raise fault.exception()
        return fail_after(partial(call, *arguments, **options), fault)

    def _next(self, verb: str) -> Fault | None:
        with self._lock:
            self._calls_until[verb] -= 1
            if self._calls_until[verb] >= 0 or not self._coming[verb]:
                return None
            self._calls_until[verb] = self._gap(verb)
            self.raised[verb] += 1
            return self._coming[verb].pop()


class Ledger:
    """What callers were told, and what handlers did."""

    def __init__(self) -> None:
        self.confirmed: dict[str, str] = {}
        """The kinds of the jobs whose submit returned, by id."""
        self.refused: set[str] = set()
        """The jobs whose submit raised."""
        self.canceled: set[str] = set()
        self.perhaps_canceled: set[str] = set()
        self.starts: list[tuple[str, str]] = []
        """The arguments and the ids of all runs, in order."""
        self.ends: list[tuple[str, str]] = []
        self.at_once = Counter[str]()
        self.most_at_once = 0

    @contextmanager
    def run(self, argument: str) -> Iterator[int]:
        """Record a run of the current job; yield how many runs of it there are now."""
        entry = argument, current_job().id
        self.starts.append(entry)
        yield self.starts.count(entry)
        self.ends.append(entry)


class Shop:
    """An application with jobs of many kinds, which write the ledger."""

    def __init__(self, app: Mainspring, ledger: Ledger) -> None:
        self.app = app
        self.ledger = ledger
        self.plain = app.job(name="plain")(self._plain)
        self.flawed = app.job(name="flawed", retry=AT_ONCE)(self._flawed)
        self.sleepy = app.job(name="sleepy")(self._sleepy)
        self.limited = app.job(name="limited", concurrency=Concurrency(1))(self._limited)
        self.awaited = app.job(name="awaited")(self._awaited)
        self.follower = app.job(name="follower")(self._plain)
        app.every(1, name="tick")(self._tick)

    def _plain(self, argument: str) -> str:
        with self.ledger.run(argument):
            current_job().progress(1, 2)
        return f"after {argument}"

    async def _awaited(self, argument: str) -> None:
        with self.ledger.run(argument):
            pass

    def _flawed(self, argument: str) -> None:
        with self.ledger.run(argument) as number:
            if number == 1:
                raise ValueError("once")

    def _sleepy(self, argument: str) -> None:
        with self.ledger.run(argument) as number:
            if number == 1:
                raise Snooze(0.05)

    def _limited(self, argument: str) -> None:
        with self.ledger.run(argument):
            self.ledger.at_once["limited"] += 1
            self.ledger.most_at_once = max(self.ledger.most_at_once, self.ledger.at_once["limited"])
            self.ledger.at_once["limited"] -= 1

    def _tick(self) -> None:
        with self.ledger.run("tick"):
            pass

    # -- what callers do

    def submit_round(self, number: int, chance: Random) -> None:
        """Submit jobs of each kind, cancel and move some, and read lists."""
        kinds: list[tuple[str, JobFunction[..., Any]]] = [
            ("plain", self.plain),
            ("delayed", self.plain.after(chance.uniform(0.1, 2.0))),
            ("flawed", self.flawed),
            ("sleepy", self.sleepy),
            ("limited", self.limited),
            ("awaited", self.awaited),
            ("followed", self.plain.options(then=self.follower)),
            ("key", self.flawed.options(sequence=f"key {number}")),
            ("key", self.plain.options(sequence=f"key {number}")),
            ("far", self.plain.after(FAR)),
        ]
        for place, (kind, job) in enumerate(kinds):
            for again in range(3):
                self._submit(kind, job, f"{kind}-{number}-{place}-{again}")
        for again in range(3):
            self._cancel(f"far-{number}-9-{again}", moves=again == 0)
        late = f"late-{number}"  # a handler that is registered while the worker runs
        self._submit("late", self.app.job(name=late)(self._plain), f"{late}-0-0")
        self._look(chance)

    def _submit(self, kind: str, job: JobFunction[..., Any], job_id: str) -> None:
        try:
            job.options(id=job_id).submit(job_id)
        except (EngineUnavailable, Unexpected):
            self.ledger.refused.add(job_id)
        else:
            self.ledger.confirmed[job_id] = kind

    def _cancel(self, job_id: str, *, moves: bool) -> None:
        try:
            if moves and job_id in self.ledger.confirmed:
                self.app.reschedule(job_id, delay=2 * FAR)
            if job_id in self.ledger.confirmed and self.app.cancel(job_id):
                self.ledger.canceled.add(job_id)
        except (EngineUnavailable, Unexpected):
            self.ledger.perhaps_canceled.add(job_id)

    def _look(self, chance: Random) -> None:
        some = chance.choice([*self.ledger.confirmed])
        engine = self.app.manager().engine
        now = engine.now()
        calls: list[Callable[[], object]] = [
            self.app.counts,
            self.app.statistics,
            self.app.workers,
            lambda: self.app.explain(some),
            lambda: self.app.jobs(limit=10),
            self.app.prune,
            lambda: self.app.queue("other").pause(),
            lambda: self.app.queue("other").resume(),
            self.app.schedules.list,
            engine.backlog,
            engine.queues,
            engine.paused_queues,
            engine.limits,
            engine.redactions,
            engine.dead_letter_handlers,
            engine.tokens,
            lambda: engine.count_up_to(Query(), 10),
            lambda: engine.upcoming([now, now + 1_000_000]),
            lambda: engine.occurrences("tick", 5),
            lambda: engine.audit_entries(AuditQuery(limit=5)),
            lambda: engine.activity(0, now),
            lambda: engine.spent([some]),
        ]
        for call in calls:
            with suppress(EngineUnavailable, Unexpected):
                call()

    # -- what the ledger says

    def has_ended(self) -> bool:
        """Return whether the jobs whose submit returned have ended as often as they should."""
        ended = Counter(job_id for _, job_id in self.ledger.ends)
        followed = Counter(argument for argument, _ in self.ledger.ends)
        return all(
            ended[job_id] == 1 and (kind != "followed" or followed[f"after {job_id}"] == 1)
            for job_id, kind in self.ledger.confirmed.items()
            if kind != "far"
        )

    def is_stored(self) -> bool:
        """Return whether no job is RUNNING in the store: a handler has ended before its outcome is stored."""
        return self.app.counts()[JobStatus.RUNNING] == 0

    def check(self, *, may_store_refused: bool) -> None:
        """Compare the ledger with the store, which can be read again."""
        jobs = {job.id: job for job in self.app.jobs(limit=1_000_000)}
        starts = Counter(job_id for _, job_id in self.ledger.starts)
        ends = Counter(job_id for _, job_id in self.ledger.ends)
        assert self.ledger.confirmed.keys() <= jobs.keys(), "a job whose submit returned is gone"
        for job_id, kind in self.ledger.confirmed.items():
            self._check_confirmed(jobs[job_id], kind, starts[job_id], ends[job_id])
        for job_id in self.ledger.refused & jobs.keys():
            assert may_store_refused, f"the submit of {jobs[job_id]} has raised"
            assert ends[job_id] == (jobs[job_id].status is JobStatus.COMPLETED), jobs[job_id]
        ours = self.ledger.confirmed.keys() | self.ledger.refused
        for job in jobs.values():
            if job.id not in ours:
                assert job.type == "follower" or job.schedule == "tick", f"nothing has submitted {job}"
                assert ends[job.id] == (job.status is JobStatus.COMPLETED), job
        assert max(ends.values()) == 1, "a job has ended twice"
        assert self.ledger.most_at_once == 1, "the limit was exceeded"
        self._check_sequences()

    def _check_confirmed(self, job: JobInfo, kind: str, starts: int, ends: int) -> None:
        if kind != "far":
            expected = 2 if job.type in ("flawed", "sleepy") else 1
            assert (job.status, starts, ends) == (JobStatus.COMPLETED, expected, 1), job
            return
        assert (starts, ends) == (0, 0), job
        if job.id in self.ledger.canceled:
            assert job.status is JobStatus.CANCELED, job
        elif job.id not in self.ledger.perhaps_canceled:
            assert job.status is JobStatus.PENDING, job

    def _check_sequences(self) -> None:
        by_round = defaultdict(list)
        for argument, _ in self.ledger.starts:
            if argument.startswith("key-"):
                _, number, place, again = argument.split("-")
                by_round[number].append((int(place), int(again)))
        for number, runs in by_round.items():
            assert runs == sorted(runs), f"the jobs of sequence {number} ran in another order: {runs}"


@dataclass(frozen=True)
class Figures:
    """What a scenario did."""

    errors: int
    calls: int
    """How many calls of the engine have failed in every way."""
    confirmed: int
    refused: int

    def __str__(self) -> str:
        return (
            f"{self.errors} errors in {self.calls} calls of the engine, {self.confirmed} jobs confirmed, "
            f"{self.refused} refused, none lost, none started without need"
        )


def run_with_errors(
    app: Mainspring,
    engine: Engine,
    clock: Clock,
    drive: Drive,
    fail_after: FailAfter,
    *,
    faults: Sequence[Fault],
    required: Sequence[str],
    seed: int,
    may_store_refused: bool = False,
) -> Figures:
    """Run rounds of jobs until each of the `required` calls has failed in every way; check, return the figures."""
    chance = Random(seed)
    errors, shop = Errors(faults, chance), Shop(app, Ledger())
    errors.inject(engine, fail_after)
    app.exchange_runtime(runtime := Runtime(app, engine, clock))
    rounds = 0
    logging.disable(logging.CRITICAL)  # each error is logged, and each first attempt of a flawed job
    try:
        _start(runtime)
        while errors.left(required) and rounds < MOST_ROUNDS:
            shop.submit_round(rounds, chance)
            assert drive(shop.has_ended), f"seed {seed}, round {rounds}: {_open_jobs(shop)}"
            rounds += 1
        assert errors.left(required) == [], f"seed {seed}: these calls have not failed"
        errors.end()
        app.schedules.pause("tick")
        assert drive(shop.is_stored), f"seed {seed}: outcomes are not stored"
        shop.check(may_store_refused=may_store_refused)
    finally:
        errors.end()
        app.exchange_runtime(None)
        with suppress(EngineUnavailable, Unexpected):  # the worker cannot leave: its number stays until a sweep
            runtime.close(5)
        logging.disable(logging.NOTSET)
    return Figures(errors.raised.total(), len(errors.raised), len(shop.ledger.confirmed), len(shop.ledger.refused))


def _start(runtime: Runtime) -> None:
    """Start the worker, again and again while its calls fail."""
    for _ in range(MOST_ROUNDS):
        with suppress(EngineUnavailable, Unexpected):
            runtime.manager.start()
            return
    raise AssertionError("the worker could not be started")


def _open_jobs(shop: Shop) -> str:
    ended = {job_id for _, job_id in shop.ledger.ends}
    return ", ".join(
        job_id for job_id, kind in shop.ledger.confirmed.items() if job_id not in ended and kind != "far"
    )


# -- on SQLite


SQLITE_FAULTS = [
    Fault(verb, moment, error)
    for error in ("unavailable", "unexpected")
    for verb, moment in [
        *((verb, BEFORE) for verb in (*WRITES, *READS, LEAVE)),
        *((verb, AFTER) for verb in (*WRITES, LEAVE)),
    ]
]
STEPS = 60
"""How many seconds of a manual clock a round may last."""


def run_on_sqlite(path: Path, *, seed: int) -> Figures:
    """Run the scenario on a SQLite file, on a manual clock; return the figures.

    A call that fails after its effect fails before the commit, because SQLite stores nothing of a failed call.
    """
    clock = ManualClock()
    engine = SqliteEngine(path, clock=clock, durability="normal")

    def fail_before_commit(call: Callable[[], Any], fault: Fault) -> Any:
        with engine.unit(durable=False):
            call()
            raise fault.exception()

    def drive(is_done: Callable[[], bool]) -> bool:
        for step in range(STEPS):
            clock.advance(1)
            if step >= 9 and is_done():
                return True
        return False

    return run_with_errors(
        Mainspring(f"sqlite:///{path}", threads=4),
        engine,
        clock,
        drive,
        fail_before_commit,
        faults=SQLITE_FAULTS,
        required=(*WRITES, *READS),
        seed=seed,
    )
