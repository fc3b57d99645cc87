"""The contents of a store of `make.py`: what is in it when it is opened, and what a worker makes of it.

Jobs are named by their ids, or by where they come from if the store gave them an id. Each is a name, a status and
its starts, so that one list says how every job has ended, and that there is none more.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from mainspring import CatchUp, Cron, DuplicateJob, Every, JobInfo, Mainspring, Priority, Unique
from tests.old_stores.filling import PACKED, TEXTS, WEIGHED
from tests.old_stores.shop import ALWAYS, FAR, Shop
from tests.programs import run_module
from tests.support import eventually

STORES = Path(__file__).parents[1] / "data"
MACHINE = {"python", "open-files", "time-zones", "synchronised", "clock", "file-system", "permissions", "disk"}
MACHINE |= {"fsync", "durability", "storage", "replicas", "sync", "server-clock", "round-trip", "monitor"}
"""Checks of the doctor that say nothing about a store, but about the machine and the server of a test."""

Job: TypeAlias = tuple[str, str, int]
"""A name, a status, and how often it was started."""
NONE: Counter[Job] = Counter()


def unpack(*names: str) -> list[str]:
    """Return a list of names; `call-a-4..6` stands for three of them."""
    found: list[str] = []
    for name in names:
        first, dots, last = name.partition("..")
        if dots:
            stem, _, number = first.rpartition("-")
            found += [f"{stem}-{n}" for n in range(int(number), int(last) + 1)]
        else:
            found.append(name)
    return found


def jobs(status: str, starts: int, *names: str) -> Counter[Job]:
    """Return jobs that are alike."""
    return Counter((name, status, starts) for name in unpack(*names))


ENDED = (
    jobs(
        *("COMPLETED", 1, "greeted", "packed", "weighed", "fetched", "indexed", "imported", "step-b-1"),
        *("greeted-then", "notify hello Bob", "unique-for-ever", "unique-for-a-minute", "unique-while-alive"),
        *("job of ended", "replay of letter-replayed-and-done", "call-a-1..3"),
    )
    + jobs("FAILED", 2, "letter", "letter-edited", "letter-replayed", "letter-replayed-and-done")
    + jobs("FAILED", 3, "quarantined")
    + jobs("CANCELED", 0, "canceled", "step-b-3")
)
RUNNING = ("import-running", "import-then", "charge-a-1", "charge-b-1", "step-a-1")
WAITING = (
    *("greet-best-effort", "greet-user-visible", "greet-user-blocking", "greet-other-queue", "greet-then"),
    *("pack", "weigh", "index-1..5", "ship-1..5", "step-a-2..4", "step-b-2", "step-b-4", "rescheduled"),
    *("charge-a-2..3", "charge-b-2", "charge-c-1..2", "call-a-4..6", "call-b-1..2"),
    *("replay of letter-replayed", *(f"fetch {text}" for text in TEXTS)),
)
AGAIN = ("flaky", "sleepy")
PAUSED = ("paused-1..2",)
LIMITED = ("call-a-7..8",)
"""Beyond the tokens that a rate has when it was quiet for long."""
LATER = ("far", "far-unique", "far-debounced", "far-rescheduled", "step-far-1..2", "charge-far")

AS_MADE = (
    ENDED
    + jobs("RUNNING", 1, *RUNNING, "import-stopped")
    + jobs("PENDING", 0, *WAITING, *PAUSED, *LIMITED, *LATER, "expired")
    + jobs("PENDING", 1, *AGAIN)
)
FROM_BACKLOGS = ("job of backlog-all", "job of backlog-all", "job of backlog-all", "job of backlog-once")
AT_REST = (
    ENDED
    + jobs("COMPLETED", 2, *RUNNING, *AGAIN)
    + jobs("COMPLETED", 1, *WAITING, *FROM_BACKLOGS, "flaky 10", "notify hello Fay")
    + jobs("CANCELED", 1, "import-stopped")
    + jobs("FAILED", 0, "expired")
    + jobs("PENDING", 0, *PAUSED, *LIMITED, *LATER)
)
"""After a worker has done all that is due."""
HELD = jobs("PENDING", 0, "held-ahead"), jobs("COMPLETED", 1, "held-ahead")
"""A job that a worker had taken ahead of its time when it was killed, in SQLite files."""


def read(app: Mainspring) -> Counter[Job]:
    """Read all jobs of a store, as their lists have them."""
    return Counter((name_of(job), str(job.status), job.starts) for job in all_jobs(app))


def all_jobs(app: Mainspring) -> Iterator[JobInfo]:
    page = app.jobs(limit=50)
    yield from page
    while page.next is not None:
        page = app.jobs(limit=50, after=page.next)
        yield from page


def name_of(job: JobInfo) -> str:
    if job.origin is not None:
        return f"replay of {job.origin}"
    if job.schedule is not None:
        return f"job of {job.schedule}"
    is_made_up = len(job.id) == 32 and "-" not in job.id
    return f"{job.type} {next(iter(job.arguments.values()))}" if is_made_up else job.id


def wait_for(wanted: Counter[Job], app: Mainspring) -> None:
    """Wait until the jobs of a store are exactly these."""

    if not eventually(lambda: read(app) == wanted):
        found = read(app)
        assert (found - wanted, wanted - found) == (Counter(), Counter())


# -- what can be looked at


def check_as_made(app: Mainspring, held: Counter[Job] = NONE) -> None:
    """Look at everything in a store that no worker has opened since it was made."""
    found = read(app)
    wanted = AS_MADE + held
    assert (found - wanted, wanted - found) == (Counter(), Counter())
    by_status = Counter(status for _, status, _ in wanted.elements())
    by_status["FAILED"] -= 2  # those that were replayed
    assert app.counts() == {status: by_status[status] for status in app.counts()}
    assert app.queue("paused").is_paused
    assert [queue.name for queue in app.all_queues() if queue.is_paused] == ["paused"]
    statistics = app.queue("paused").statistics()
    assert (statistics.pending, statistics.running) == (2, 0)
    _check_jobs(app)
    _check_letters(app)
    _check_schedules(app)


def _check_jobs(app: Mainspring) -> None:
    greeted = app.get("greeted")
    assert (greeted.arguments, greeted.result) == ({"name": "Ann", "times": 2}, "hello Annhello Ann")
    assert (greeted.headers, greeted.queue, greeted.priority) == (
        {"trace": "t-0"},
        "default",
        Priority.USER_VISIBLE,
    )
    assert app.handle("packed").result() == PACKED[0]
    assert app.handle("weighed").result() == WEIGHED[0] * 2
    assert app.get("greet-user-blocking").priority is Priority.USER_BLOCKING
    assert app.get("greet-best-effort").priority is Priority.BEST_EFFORT
    assert app.get("greet-other-queue").queue == "other"
    far = app.get("far")
    assert (far.due, far.arguments, far.status) == (FAR, {"name": "far"}, "PENDING")
    assert app.get("far-rescheduled").due == FAR
    assert app.get("far-unique").unique_key == "greet: far"
    expired = app.get("expired")
    assert expired.expires == expired.due + timedelta(seconds=30)
    assert app.get("step-a-3").sequence == 'order="a"'
    (limit,) = app.get("charge-a-2").limits
    assert "charge" in limit
    assert 'customer="a"' in limit
    running = app.get("import-running")
    assert running.progress is not None
    assert (running.progress.done, running.progress.total, running.progress.note) == (1, 10, "read")
    assert (running.stop_requested, app.get("import-stopped").stop_requested) == (False, True)
    flaky = app.get("flaky")
    assert (flaky.failures, [attempt.cause for attempt in flaky.history]) == (1, ["failure"])


def _check_letters(app: Mainspring) -> None:
    assert sorted(job.id for job in app.dead_letters.list()) == ["letter", "letter-edited", "quarantined"]
    replayed = {job.id: job.replayed_as for job in app.dead_letters.list(replayed=True)}
    assert sorted(replayed) == ["letter-replayed", "letter-replayed-and-done"]
    for replayed_id, replay in replayed.items():
        assert replay is not None
        assert app.get(replay).origin == replayed_id
    letter = app.dead_letters.get("letter")
    assert (letter.arguments, letter.failures, letter.attempts) == ({"number": 0}, 2, 2)
    assert [(attempt.number, attempt.cause) for attempt in letter.history] == [(1, "failure"), (2, "failure")]
    assert letter.error is not None
    assert letter.error.splitlines()[0] == "ConnectionError: no answer for 0"
    assert app.dead_letters.get("letter-edited").arguments == {"number": 30}
    quarantined = app.dead_letters.get("quarantined")
    assert (quarantined.crashes, (quarantined.error or "")[:11]) == (3, "quarantined")


def _check_schedules(app: Mainspring) -> None:
    schedules = {schedule.name: schedule for schedule in app.schedules.list()}
    backlogs = {"backlog-all": (CatchUp(3), 4), "backlog-once": ("once", 4), "backlog-skip": ("skip", 4)}
    assert set(schedules) == {*backlogs, "ended", "nightly", "resting", "sync", "working-days"}
    for name, (misfire, occurrences) in backlogs.items():
        schedule = schedules[name]
        assert (schedule.misfire, len(schedule.upcoming(10)), schedule.last_due) == (misfire, occurrences, None)
        assert (schedule.arguments, schedule.type, schedule.queue) == ({"about": name}, "report", "reports")
    ended = schedules["ended"]
    assert (ended.next_due, ended.last_due is None, ended.is_paused) == (None, False, False)
    nightly = schedules["nightly"]
    assert nightly.rule == Cron("0 2 * * *", tz="Asia/Taipei")
    assert (nightly.start, nightly.next_due) == (FAR, datetime(2900, 1, 1, 18, tzinfo=UTC))
    sync = schedules["sync"]
    assert isinstance(sync.rule, Every)
    assert (sync.next_due, sync.overlap) == (FAR, "queue")
    assert sync.upcoming(2)[1] == FAR + timedelta(minutes=5)
    days = schedules["working-days"]
    assert days.rule == Cron("30 9 * * mon-fri", tz="Europe/Berlin", dst_gap="skip", dst_fold="both")
    assert (days.misfire, days.overlap, days.jitter) == (CatchUp(5), "allow", timedelta(seconds=30))
    assert days.next_due == datetime(2900, 1, 1, 8, 30, tzinfo=UTC)
    assert schedules["resting"].is_paused


# -- what has happened


def check_calls(shop: Shop, held: Counter[Job] = NONE) -> None:
    """Look at what the handlers of a worker were called with, which has done all that was due."""
    app, ledger = shop.app, shop.ledger
    names = Counter(name_of(app.get(job_id)) for job_id in ledger.ids)
    made_up = [*FROM_BACKLOGS, "flaky 10", "notify hello Fay", *(name for name, _, _ in held)]
    assert names == Counter(unpack(*RUNNING, *WAITING, *AGAIN, *made_up))
    assert ledger.of("pack") == [(*PACKED, {"note": "fragile"})]
    assert ledger.of("weigh") == [WEIGHED]
    assert sorted(ledger.of("fetch")) == [(text,) for text in TEXTS]
    assert sorted(ledger.of("index")) == [(f"page {number}",) for number in range(1, 6)]
    assert ledger.of("notify") == [("hello Fay", {"trace": "t-2"})]
    steps = ledger.of("step")
    assert [number for order, number in steps if order == "a"] == [1, 2, 3, 4]
    assert [number for order, number in steps if order == "b"] == [2, 4]
    for customer, count in (("a", 3), ("b", 2), ("c", 2)):
        charges = [app.get(f"charge-{customer}-{number}") for number in range(1, count + 1)]
        assert_one_after_another(charges)
    assert app.get("import-running").crashes == 1
    assert [attempt.cause for attempt in app.get("import-running").history] == ["crash"]
    assert app.get("import-running").result == 10
    assert (app.get("expired").error or "").startswith("expired")


def assert_one_after_another(jobs: list[JobInfo]) -> None:
    spans = sorted((job.started, job.finished) for job in jobs)
    for (_, finished), (started, _) in pairwise(spans):
        assert finished is not None
        assert started is not None
        assert finished <= started


def check_history(app: Mainspring) -> None:
    """Look at what is recorded of occurrences for which no job was made."""
    assert {
        name: [(found.kind.value, found.count) for found in app.schedules.history(name)]
        for name in ("backlog-all", "backlog-once", "backlog-skip", "ended")
    } == {
        "backlog-all": [("missed", 1)],
        "backlog-once": [("coalesced", 3)],
        "backlog-skip": [("skipped", 4)],
        "ended": [],
    }
    for schedule in app.schedules.list():
        assert schedule.record.revision == 1 or schedule.name == "resting", schedule
        if schedule.name.startswith("backlog"):
            assert (schedule.next_due, schedule.last_due is None) == (None, False)


# -- what can be done with it


def submit_again(shop: Shop) -> None:
    """Submit jobs under unique keys of the store: those in the way are still in the way."""
    greet, far = shop.greet, shop.greet.at(FAR)
    assert far.options(unique="far").submit("again").id == "far-unique"
    assert far.options(unique=Unique("debounced", on_conflict="replace")).submit("again").id == "far-debounced"
    assert shop.app.get("far-debounced").arguments == {"name": "again"}
    assert greet.options(unique=Unique("for-ever", window=ALWAYS)).submit("again").id == "unique-for-ever"
    for key, unique in (("for-a-minute", Unique("for-a-minute", window=60)), ("while-alive", "while-alive")):
        job_id = f"again-{key}"
        assert greet.options(id=job_id, unique=unique).submit(key).id == job_id
    with pytest.raises(DuplicateJob):
        far.options(unique=Unique("far", on_conflict="raise")).submit("again")


def operate(shop: Shop) -> None:
    """Replay dead letters, resume a queue, cancel and reschedule what is due later."""
    app = shop.app
    assert sorted(job.id for job in app.dead_letters.list()) == [
        "expired",
        "letter",
        "letter-edited",
        "quarantined",
    ]
    assert len(app.dead_letters.replay(type="fragile")) == 2
    app.retry("quarantined")
    app.retry("expired")
    assert app.queue("paused").resume()
    assert app.cancel("far")
    assert app.reschedule("far-rescheduled", delay=0)


AFTERWARDS = (
    AT_REST
    - jobs("FAILED", 3, "quarantined")
    - jobs("FAILED", 0, "expired")
    - jobs("PENDING", 0, *PAUSED, "far", "far-rescheduled")
    + jobs("COMPLETED", 1, "replay of letter", "replay of letter-edited", "expired", *PAUSED)
    + jobs("COMPLETED", 1, "again-for-a-minute", "again-while-alive", "far-rescheduled")
    + jobs("COMPLETED", 4, "quarantined")
    + jobs("CANCELED", 0, "far")
)
"""After all of this, when a worker has done what is due."""


def check_afterwards(shop: Shop) -> None:
    """Look at the calls of what was set going again."""
    assert sorted(shop.ledger.of("fragile")) == [(0,), (2,), (30,)]
    assert shop.ledger.of("poison") == [()]
    greeted = [name for name, _ in shop.ledger.of("greet")]
    assert Counter(greeted) & Counter({"far": 1, "again": 1}) == Counter()
    assert max(Counter(shop.ledger.ids).values()) == 1


# -- from outside


def run_program(*arguments: str, cache: Path) -> tuple[int, Any]:
    """Run the program; return its exit code and the document that it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["XDG_CACHE_HOME"] = str(cache)
    done = run_module("mainspring", *arguments, "--json", folder=cache, environment=environment)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def check_from_outside(url: str, wanted: Counter[Job], cache: Path) -> None:
    """Let the program list the jobs of a store on which a worker runs, and look for what is wrong with it."""
    code, document = run_program("jobs", "list", "--limit", "500", "--url", url, cache=cache)
    by_status = Counter(status for _, status, _ in wanted.elements())
    assert (code, Counter(job["status"] for job in document["jobs"])) == (0, by_status)
    code, document = run_program("doctor", "--url", url, cache=cache)
    wrong = [
        finding
        for finding in document["findings"]
        if finding["severity"] in {"warning", "error"} and finding["check"] not in MACHINE
    ]
    assert wrong == []


def unpack_store(name: str, folder: Path, version: str = "store-0.1") -> None:
    """Put a copy of a store into a folder."""
    with tarfile.open(STORES / version / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
