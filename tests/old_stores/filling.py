"""The jobs, schedules and settings of the old stores, in the order in which they come into a store."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import apsw

from mainspring import CatchUp, Cron, Every, JobStatus, Priority, Unique
from tests.old_stores.shop import ALWAYS, FAR, Color, Item, Order, Shop

ORDER = Order(
    17,
    datetime(2026, 1, 5, 13, 30, 0, 250_000, tzinfo=UTC),
    [Item("a-1", Decimal("19.90"), (Color.RED, Color.BLUE)), Item("ü-2", Decimal("0.10"))],
    gift=Item("g", Decimal(0)),
)
PACKED = (
    ORDER,
    date(2026, 2, 28),
    time(23, 59, 59),
    UUID("12345678-1234-5678-1234-567812345678"),
    b"\x00\xff bytes",
)
WEIGHED = (
    Decimal("1234567890.123456789"),
    timedelta(days=1, microseconds=1),
    Color.BLUE,
    {"kg": 1.5},
    (3, "three"),
)
LETTERS = ("letter", "letter-edited", "letter-replayed", "letter-replayed-and-done")
TEXTS = tuple("x" * number for number in range(1, 21))

# -- jobs that end while the store is made


def submit_ended(shop: Shop) -> None:
    """Submit jobs that end well, and those that become dead letters."""
    shop.greet.options(id="greeted", headers={"trace": "t-0"}).submit("Ann", times=2)
    shop.pack.options(id="packed").submit(*PACKED, note="fragile")
    shop.weigh.options(id="weighed").submit(*WEIGHED)
    shop.fetch.options(id="fetched").submit("page")
    shop.index.options(id="indexed").submit("page")
    shop.import_.options(id="imported").submit("small.csv", 1)
    shop.step.options(id="step-b-1").submit("b", 1)
    shop.greet.options(id="greeted-then", headers={"trace": "t-1"}, then=shop.notify).submit("Bob")
    shop.greet.options(id="unique-for-ever", unique=Unique("for-ever", window=ALWAYS)).submit("Cy")
    shop.greet.options(id="unique-for-a-minute", unique=Unique("for-a-minute", window=60)).submit("Di")
    shop.greet.options(id="unique-while-alive", unique="while-alive").submit("Ed")
    for number, letter in enumerate(LETTERS):
        shop.fragile.options(id=letter).submit(number)


def has_ended(shop: Shop) -> bool:
    counts = shop.app.counts()
    return (counts[JobStatus.COMPLETED], counts[JobStatus.FAILED]) == (12, 4)


def put_ending_schedule(shop: Shop) -> None:
    """Put a schedule that fires once and is over then."""
    end = shop.clock.now() + timedelta(seconds=1.5)
    shop.app.schedules.put("ended", shop.report, Every(1), arguments=("ended",), end=end)


def has_fired(shop: Shop) -> bool:
    return shop.app.counts(type="report")[JobStatus.COMPLETED] == 1


def cancel_and_replay(shop: Shop) -> None:
    """Cancel jobs that wait, change a dead letter, and replay another one."""
    shop.greet.options(id="canceled").at(FAR).submit("nobody")
    assert shop.app.cancel("canceled")
    shop.app.dead_letters.edit("letter-edited", {"number": 30})
    shop.app.dead_letters.replay("letter-replayed-and-done")


def has_replayed(shop: Shop) -> bool:
    return shop.app.counts(type="fragile")[JobStatus.COMPLETED] == 1


# -- jobs of workers that are killed


def submit_poison(shop: Shop) -> None:
    """Submit the job during which workers are killed until it is quarantined."""
    shop.poison.options(id="quarantined").submit()


def runs_poison(shop: Shop) -> bool:
    return shop.ledger.ids == ["quarantined"] and shop.app.get("quarantined").status is JobStatus.RUNNING


def has_quarantined(shop: Shop) -> bool:
    return shop.app.get("quarantined").status is JobStatus.FAILED


def submit_interrupted(shop: Shop, *, is_held: bool) -> None:
    """Submit jobs that run, or wait behind those that run, when their worker is killed."""
    shop.import_.options(id="import-running").submit("large.csv", 10)
    shop.import_.options(id="import-stopped").submit("wrong.csv", 10)
    shop.import_.options(id="import-then", then=shop.flaky).submit("then.csv", 10)
    for customer, count in (("a", 3), ("b", 2)):
        for number in range(1, count + 1):
            shop.charge.options(id=f"charge-{customer}-{number}").submit(customer, number)
    for number in range(1, 9):
        shop.call.options(id=f"call-a-{number}").submit("a", number)
    for number in range(1, 5):
        shop.step.options(id=f"step-a-{number}").submit("a", number)
    shop.flaky.options(id="flaky").submit(1)
    shop.sleepy.options(id="sleepy").submit(1)
    if is_held:
        shop.greet.options(id="held-ahead").after(60.5).submit("held")  # the worker comes after a minute


def holds_all(shop: Shop) -> bool:
    """Answer whether the worker is where it is to be killed; ask it to stop one of its jobs on the way."""
    app = shop.app
    if app.get("import-stopped").status is JobStatus.RUNNING and not app.get("import-stopped").stop_requested:
        app.cancel("import-stopped")
    return (
        app.counts()[JobStatus.RUNNING] == 6
        and app.counts(type="call")[JobStatus.COMPLETED] == 3
        and app.get("import-running").progress is not None
        and app.get("import-stopped").stop_requested
        and app.get("flaky").failures == 1
        and len(app.get("sleepy").history) + app.get("sleepy").starts > 0
        and app.get("sleepy").status is JobStatus.PENDING
    )


# -- jobs that no worker has seen


def submit_waiting(shop: Shop) -> None:
    """Submit jobs of all kinds."""
    for priority in Priority:
        job_id = f"greet-{priority.name.lower().replace('_', '-')}"
        shop.greet.options(id=job_id, priority=priority).submit(priority.name)
    shop.greet.options(id="greet-other-queue", queue="other").submit("other")
    shop.greet.options(id="greet-then", headers={"trace": "t-2"}, then=shop.notify.options(delay=1)).submit("Fay")
    shop.pack.options(id="pack").submit(*PACKED, note="fragile")
    shop.weigh.options(id="weigh").submit(*WEIGHED)
    shop.fetch.submit_many([(text,) for text in TEXTS])
    for number in range(1, 6):
        shop.index.options(id=f"index-{number}").submit(f"page {number}")
        shop.ship.options(id=f"ship-{number}").submit(number)
    _submit_limited(shop)
    _submit_far(shop)
    shop.greet.options(id="expired", expires=30).submit("too late")
    shop.app.dead_letters.replay("letter-replayed")
    shop.app.queue("paused").pause()
    for number in (1, 2):
        shop.greet.options(id=f"paused-{number}", queue="paused").submit(f"paused {number}")


def _submit_limited(shop: Shop) -> None:
    for number in (2, 3, 4):
        shop.step.options(id=f"step-b-{number}").submit("b", number)
    assert shop.app.cancel("step-b-3")
    for number in (1, 2):
        shop.charge.options(id=f"charge-c-{number}").submit("c", number)
        shop.call.options(id=f"call-b-{number}").submit("b", number)


def _submit_far(shop: Shop) -> None:
    far = shop.greet.at(FAR)
    far.options(id="far").submit("far")
    far.options(id="far-unique", unique="far").submit("unique")
    far.options(id="far-debounced", unique=Unique("debounced", on_conflict="replace")).submit("debounced")
    for number in (1, 2):
        shop.step.options(id=f"step-far-{number}").at(FAR).submit("far", number)
    shop.charge.options(id="charge-far").at(FAR).submit("far", 1)
    far.options(id="rescheduled").submit("rescheduled")
    assert shop.app.reschedule("rescheduled", delay=0)
    shop.greet.options(id="far-rescheduled").submit("rescheduled")
    assert shop.app.reschedule("far-rescheduled", at=FAR)


def put_schedules(shop: Shop) -> None:
    """Put schedules at run time; those of the application are in the store since its first worker."""
    put = shop.app.schedules.put
    end = shop.clock.now() + timedelta(seconds=4.5)
    put("backlog-all", shop.report, Every(1), arguments=("backlog-all",), misfire=CatchUp(3), end=end)
    put("backlog-once", shop.report, Every(1), arguments=("backlog-once",), end=end)
    put("backlog-skip", shop.report, Every(1), arguments=("backlog-skip",), misfire="skip", end=end)
    put(
        "working-days",
        shop.report,
        Cron("30 9 * * mon-fri", tz="Europe/Berlin", dst_gap="skip", dst_fold="both"),
        arguments={"about": "working days"},
        misfire=CatchUp(5),
        overlap="allow",
        jitter=30,
        start=FAR,
    )
    put("resting", shop.report, Every(timedelta(hours=1)), arguments=("resting",))
    assert shop.app.schedules.pause("resting")


# -- the first schema


def insert_first_schema(connection: apsw.Connection, now: int) -> None:
    """Write rows as the code of the first schema did."""
    history = '[{"number":1,"started":1,"ended":2,"cause":"failure","error":"it broke"}]'
    connection.execute("INSERT INTO lanes VALUES (1, 'default', 'greet', 1), (2, 'imports', 'import', 2)")
    connection.execute("INSERT INTO workers VALUES (7, 'gone', 1, '[\"greet\"]', ?1, ?1)", (now,))
    rows: dict[str, dict[str, Any]] = {
        "due": {},
        "far": {"due": round(FAR.timestamp()) * 1_000_000},
        "msgpack": {"payload": b"\x81\xa4name\xa7msgpack", "codec": "msgpack"},
        "held": {"owner": 7, "token": 3},
        "running": {"status": 1, "owner": 7, "token": 5, "starts": 1, "started": now},
        "stopped": {"status": 1, "owner": 7, "token": 1, "starts": 1, "started": now, "stop": 1},
        "import": {"lane": 2, "payload": '{"name":"old.csv","pages":3}'},
        "suspect": {"crashes": 2, "starts": 2},
        "retried": {"failures": 1, "starts": 1, "error": "it broke", "history": history},
        "completed": {"status": 2, "starts": 1, "finished": now, "result": '"hello"'},
        "letter": {"status": 3, "starts": 1, "failures": 1, "finished": now, "error": "x", "history": history},
        "canceled": {"status": 4, "finished": now},
    }
    for job_id, columns in rows.items():
        values: dict[str, Any] = {"id": job_id, "lane": 1, "due": now, "created": now, "codec": "json"}
        values |= {"payload": f'{{"name":"{job_id}"}}'} | columns
        marks = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
