"""Ten thousand schedules: starting a worker with them, firing all of them at once, and how late they are."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from random import Random
from time import perf_counter, time_ns
from typing import NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from cronsim import CronSim
from msgspec.structs import replace

from benchmarks.jobs import drain, million, punctuality
from benchmarks.jobs.process import WorkerProcess, submitter
from benchmarks.jobs.rounds import best_rates, least
from benchmarks.jobs.systems.every import FULL
from benchmarks.measure import Line, Section, rates, times
from mainspring import Cron, Every, JobStatus, Mainspring
from mainspring.jobs.commands import PutSchedule
from mainspring.jobs.recurrence.planning import plan_firing
from mainspring.jobs.recurrence.rules import decode_rule
from mainspring.jobs.recurrence.schedule_definition import define_schedule
from mainspring.jobs.recurrence.schedule_firer import MAX_BATCH
from mainspring.jobs.recurrence.schedule_storage import CHUNK

T = TypeVar("T")

SCHEDULES, FEW_RULES, FIRED_LIMIT = 10_000, 10, 10_000
PUNCTUAL, WINDOW_SECONDS, AHEAD_SECONDS = 1_000, 5.0, 3.0
SECONDS = 60
HOUR = timedelta(hours=1)
MONTH = 40 * 86_400_000_000  # microseconds, and a little more
QUESTIONS = 2_000
EXPRESSIONS = (
    ("*/5 * * * *", "UTC"),
    ("0 2 * * *", "Asia/Taipei"),
    ("30 2 * * *", "Europe/Berlin"),
    ("0 9 * * MON#1", "America/New_York"),
    ("0 0 29 2 *", "UTC"),
)
ZONES = ("UTC", "Asia/Taipei", "Europe/Berlin", "America/New_York")


def expression(number: int) -> str:
    """Return one of many rules, no two of them equal: once a month at some minute of its first week."""
    day, minute = divmod(number, 1_440)
    return f"{minute % 60} {minute // 60} {1 + day} * *"


def zone(number: int) -> str:
    return ZONES[number % len(ZONES)]


@cache
def crons(count: int) -> list[Cron]:
    return [Cron(expression(number), tz=zone(number)) for number in range(count)]


# -- start-up


class StartUp(NamedTuple):
    """Seconds."""

    again: float
    first: float
    empty: float
    declaring: float


def start_up(store: Path) -> StartUp:
    """Start a worker with no schedules, with new ones, and with the same again."""
    empty, _ = start(store, 0)
    first, declaring = start(store, SCHEDULES)
    again, _ = start(store, SCHEDULES)
    return StartUp(again, first, empty, declaring)


def start(store: Path, count: int) -> tuple[float, float]:
    """Return the seconds until a worker runs, and those that the decorators took."""
    decode_rule.cache_clear()  # as in a new process
    with Mainspring(f"sqlite:///{store}") as app:
        job = app.job(name="nightly")(nightly)
        began = perf_counter()
        for number in range(count):
            app.cron(expression(number), tz=zone(number), name=f"schedule {number}")(job)
        declared_at = perf_counter()
        app.manager()
        opened = perf_counter()
        with app.running():
            return perf_counter() - opened, declared_at - began


def nightly() -> None:
    """Never run: the benchmark ends before."""


def start_up_lines(rounds: int) -> list[Line]:
    found = least(start_up, rounds)
    assert found is not None
    beside = f"{found.empty * 1e3:.0f} ms ours, without schedules"
    return [
        Line(what=f"declaring {SCHEDULES:,}", ours=f"{found.declaring:.2f} s"),
        Line(what="start of a worker that stores them all", ours=f"{found.first:.2f} s", peer=beside),
        Line(what="start of a worker that finds them all unchanged", ours=f"{found.again:.2f} s", peer=beside),
    ]


# -- firing


def put(rules: Iterable[tuple[Cron | Every, int]], first_value: int) -> None:
    """Store schedules of the open application, each with its next occurrence."""
    manager = FULL.app.manager()
    now = manager.engine.now()
    puts = []
    for number, (every, next_due) in enumerate(rules):
        definition = define_schedule(f"schedule {number}", FULL.job, every, arguments=(first_value + number,))
        record = definition.record(None, FULL.app.limits, now)
        puts.append(PutSchedule(replace(record, next_due=next_due), None))
    for first in range(0, len(puts), CHUNK):
        if not all(manager.arrange(puts[first : first + CHUNK])):
            raise RuntimeError("the store has these schedules already")


def put_due(rules: int = SCHEDULES) -> None:
    """Store schedules whose last occurrence has not been fired, with so many different rules."""
    now = FULL.app.manager().engine.now()
    due = [(cron, cron.last_until(now, now - MONTH) or now) for cron in crons(SCHEDULES)[:: SCHEDULES // rules]]
    put([due[number % rules] for number in range(SCHEDULES)], 0)


class FireCost(NamedTuple):
    """Microseconds for each schedule."""

    total: float
    reading: float
    planning: float
    storing: float

    def __str__(self) -> str:
        parts = f"read {self.reading:.0f}, plan {self.planning:.0f}, store {self.storing:.0f}"
        return f"{self.total:.0f} µs ({parts})"


def fire_cost(store: Path, rules: int = SCHEDULES) -> FireCost:
    """Fire all in batches, as a worker does, with nothing else around it."""
    reading = planning = storing = 0.0
    with submitter(FULL, store):
        put_due(rules)
        decode_rule.cache_clear()
        manager = FULL.app.manager()
        engine = manager.engine
        now = engine.now()

        def new_id(_: int) -> str:
            return manager.submission.new_id()

        while True:
            began = perf_counter()
            due = engine.schedules(due_until=now, limit=MAX_BATCH)
            read = perf_counter()
            firings = [plan_firing(record, decode_rule(record.rule), now, new_id) for record in due]
            planned = perf_counter()
            if not firings:
                break
            if not all(fired.submitted for fired in manager.fire(firings)):
                raise RuntimeError("a schedule that was due was not fired")
            reading += read - began
            planning += planned - read
            storing += perf_counter() - planned
    parts = [seconds / SCHEDULES * 1e6 for seconds in (reading, planning, storing)]
    return FireCost(sum(parts), *parts)


def run_rate(store: Path, prepare: Callable[[], None]) -> float:
    """Return jobs per second of a worker process, from the first start until all are settled."""
    with submitter(FULL, store):
        prepare()
        with WorkerProcess(FULL, store, expected=SCHEDULES) as worker:
            starts = worker.wait_started(SCHEDULES, SECONDS)
            worker.wait_until(lambda: not FULL.app.jobs(status=JobStatus.RUNNING, limit=1), SECONDS)
            took = time_ns() - starts[0].at_ns
    drain.require_all(FULL, {start.value for start in starts}, SCHEDULES)
    return SCHEDULES / (took / 1e9)


def fire_lines(rounds: int) -> list[Line]:
    cost = least(fire_cost, rounds)
    few_cost = least(partial(fire_cost, rules=FEW_RULES), rounds)
    assert cost is not None
    assert few_cost is not None
    best = best_rates(
        {
            "fired": partial(run_rate, prepare=put_due),
            "few": partial(run_rate, prepare=partial(put_due, FEW_RULES)),
            "plain": partial(run_rate, prepare=lambda: FULL.submit_many(range(SCHEDULES))),
        },
        rounds,
    )
    return [
        Line(
            what=f"firing {SCHEDULES:,} that are due, {MAX_BATCH:,} in a commit: each",
            ours=str(cost),
        ),
        Line(what=f"the same with {FEW_RULES} different rules", ours=str(few_cost)),
        Line(
            what=f"{SCHEDULES:,} due at once, fired and run by one worker process",
            ours=f"{best['fired']:,.0f}/s",
            peer=f"{best['plain']:,.0f}/s ours, submitted beforehand",
            ratio=times(best["fired"] / best["plain"]),
            bound=f"≥ {FIRED_LIMIT:,}/s",
            is_met=best["fired"] >= FIRED_LIMIT,
        ),
        Line(
            what=f"the same with {FEW_RULES} different rules",
            ours=f"{best['few']:,.0f}/s",
            peer=f"{best['plain']:,.0f}/s ours, submitted beforehand",
            ratio=times(best["few"] / best["plain"]),
            bound=f"≥ {FIRED_LIMIT:,}/s",
            is_met=best["few"] >= FIRED_LIMIT,
        ),
    ]


# -- asking when


def asking_lines(rounds: int) -> list[Line]:
    chance = Random(3)
    base = time_ns() // 1_000
    instants = [base + chance.randrange(10 * 365 * 86_400) * 1_000_000 for _ in range(QUESTIONS)]
    lines = []
    for text, tz in EXPRESSIONS:
        cron = Cron(text, tz=tz)
        walls = [
            datetime.fromtimestamp(instant // 1_000_000, UTC).astimezone(ZoneInfo(tz)) for instant in instants
        ]
        best = rates(
            {
                "ours": partial(asking_rate, cron.next_after, instants),
                "cronsim": partial(asking_rate, partial(_next_of_cronsim, text), walls),
            },
            rounds,
        )
        lines.append(
            Line(
                what=f"`next_after`, {text} in {tz}",
                ours=f"{1e6 / best['ours']:.1f} µs",
                peer=f"{1e6 / best['cronsim']:.1f} µs cronsim, parsing included",
                ratio=times(best["ours"] / best["cronsim"]),
            )
        )
    return lines


def asking_rate(ask: Callable[[T], object], questions: Sequence[T]) -> float:
    began = perf_counter()
    for question in questions:
        ask(question)
    return len(questions) / (perf_counter() - began)


def _next_of_cronsim(text: str, wall: datetime) -> datetime:
    return next(CronSim(text, wall))


# -- punctuality


def lateness(store: Path) -> punctuality.Lateness:
    """Store schedules that come due one after another while a worker runs, and look how late their jobs start."""
    chance = Random(11)
    with million.working(FULL, store) as worker:
        base = time_ns() // 1_000_000 + int(AHEAD_SECONDS * 1e3)
        dues = [base + int(chance.random() * WINDOW_SECONDS * 1e3) for _ in range(PUNCTUAL)]
        put([(Every(HOUR, anchor=due * 1_000), due * 1_000) for due in dues], punctuality.FIRST)
        return punctuality.lateness(worker, [due * 1_000_000 for due in dues], 1)


def lateness_lines(rounds: int) -> list[Line]:
    found = least(lateness, rounds)
    assert found is not None
    return [
        Line(
            what=f"{PUNCTUAL:,} schedules within {WINDOW_SECONDS:g} s, start minus due, p50 / p99 / max",
            ours=str(found),
            bound=f"p99 < {punctuality.LIMIT:g} ms",
            is_met=found.p99 < punctuality.LIMIT,
        ),
        Line(what="started early", ours=f"{found.early}", bound="0", is_met=not found.early),
    ]


def run(rounds: int = 2) -> Section:
    lines = [
        *start_up_lines(rounds),
        *fire_lines(rounds),
        *asking_lines(rounds),
        *lateness_lines(rounds),
    ]
    return Section(
        title=f"Jobs: {SCHEDULES:,} schedules, best of {rounds} rounds",
        lines=lines,
        text="FULL. All rules are crons, and no two are equal unless it says so. Firing includes reading a rule "
        "for the first time. Start minus due is that of the jobs that schedules make, which takes one commit more "
        "than a job has that was submitted ahead.",
    )
