"""Gives the shop a past: some hours of jobs on a manual clock, with failures, dead letters and schedules.

The same seed gives the same jobs. The counts of activity, from which the dashboard draws its history, are recorded
as workers record them.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from random import Random

from mainspring import Cron, Mainspring, Rate, acting_as
from mainspring.jobs.activity import Tally
from mainspring.jobs.activity_rows import ActivityBatch, counts_of
from mainspring.jobs.histogram import Histogram
from mainspring.testing import TimeTravel, time_travel
from tests.browser.shop import HOSTILE, Address, Shop, Speed
from tests.support import eventually

SEED = 7
MINUTE = 60_000_000  # microseconds
HUGE = 1_000_000


def fill(shop: Shop, *, until: datetime, hours: float) -> None:
    """Run the shop on a manual clock for some hours, until an instant; then leave jobs that wait."""
    random = Random(SEED)
    with time_travel(shop.app, start=until - timedelta(hours=hours), isolated=False) as travel:
        shop.pace.spend = travel.clock.jump
        try:
            _run_the_past(shop, travel, random, until)
            _leave_jobs(shop, random)
        finally:
            shop.pace.spend = lambda seconds: None


def _run_the_past(shop: Shop, travel: TimeTravel, random: Random, until: datetime) -> None:
    app = shop.app
    app.schedules.put(
        "weekly-invoice",
        shop.mail,
        Cron("0 9 * * MON", tz="America/New_York"),
        arguments={"to": "books@shop.example", "subject": "The week"},
    )
    app.queue("payments", max_depth=5_000, submit_rate=Rate(2_000, per=1))
    order = 1_000
    while travel.now < until - timedelta(minutes=5):
        for _ in range(5):
            order += 1
            speed = Speed.EXPRESS if order % 5 == 0 else Speed.STANDARD
            address = Address("Karl-Marx-Allee 1", "Berlin", "10243")
            shop.ship.options(id=f"ship-{order}", headers={"tenant": f"t{order % 3}"}).submit(
                order, speed, address, is_gift=order % 9 == 0
            )
            shop.charge.options(id=f"charge-{order}").submit(
                order, random.randrange(900, 99_000), card="4111 1111"
            )
        to = f"bounce{order}@shop.example" if order % 4 == 0 else f"customer{order}@shop.example"
        shop.mail.options(id=f"mail-{order}").submit(to, "Your order is on its way", "secret")
        travel.fast_forward(minutes=4, seconds=random.randrange(60))
    travel.fast_forward(max(timedelta(0), until - travel.now - timedelta(seconds=20)))
    with acting_as("ann"):
        app.schedules.pause("weekly-invoice")
        letters = app.dead_letters.list(type="mail.send", limit=2)
        app.dead_letters.replay(letters[0].id, changes={"to": "customer@shop.example"})
        app.queue("search").pause()
    travel.settle()


def _leave_jobs(shop: Shop, random: Random) -> None:
    """Submit jobs that wait, run or fail when the past ends."""
    app = shop.app
    for number in range(60):
        due = timedelta(seconds=40 + 3_500 * random.random() ** 1.3)
        shop.mail.after(due).options(id=f"reminder-{number}").submit(
            f"customer{number}@shop.example", "How was it?"
        )
    for number in range(90):
        due = timedelta(hours=1 + 22 * random.random())
        shop.ship.after(due).options(id=f"later-{number}").submit(5_000 + number)
    for number in range(12):
        shop.reindex.options(id=f"reindex-{number}").submit("eu-1")
    app.cancel("reminder-0")
    shop.hostile.options(id="hostile-1").submit(HOSTILE, {HOSTILE: HOSTILE})
    shop.hostile.options(id="hostile-2").submit("x" * HUGE)
    eventually(lambda: app.counts(type="hostile.text")["FAILED"] == 2)


def wait_until_running(job_id: str, app: Mainspring) -> None:
    """Wait until a worker has started a job and it has reported progress."""
    eventually(lambda: app.get(job_id).progress is not None)


def record_history(app: Mainspring, *, hours: int) -> None:
    """Store counts of the activity of the last hours, as workers do."""
    random = Random(SEED)
    engine = app.manager().engine
    first = engine.now() // MINUTE
    minutes = {first - ago: _activity_of_a_minute(random, ago) for ago in range(60 * hours)}
    with engine.unit(durable=False):
        engine.record_activity(ActivityBatch("history", 1, tuple(counts_of(minutes))))


def _activity_of_a_minute(random: Random, ago: int) -> Tally:
    tally = Tally()
    level = 40 + 25 * math.sin(ago / 180) + random.gauss(0, 5)
    is_trouble = 130 < ago < 150
    for queue, job_type, share in (
        ("orders", "shop.ship_order", 1.0),
        ("mail", "mail.send", 1.4),
        ("payments", "shop.charge_card", 0.6),
    ):
        count = max(1, int(level * share))
        failed = (
            int(count * (0.4 if is_trouble else random.choice((0, 0, 0, 0.02, 0.05))))
            if queue == "payments"
            else 0
        )
        tally.submitted[(queue, job_type)] = count
        tally.attempts[(queue, job_type, "completed")] = count - failed
        if failed:
            tally.attempts[(queue, job_type, "failed")] = failed
            tally.retries[(queue, job_type)] = failed
        lateness, duration = Histogram(), Histogram()
        slow = 30 if is_trouble else 1
        lateness.observe_all(
            [int(abs(random.gauss(1_500, 900)) * slow) + (random.random() < 0.02) * 40_000 for _ in range(count)]
        )
        duration.observe_all([int(random.expovariate(1 / 30_000)) for _ in range(count)])
        tally.lateness[(queue, job_type, "delayed")] = lateness
        tally.duration[(queue, job_type, "delayed")] = duration
    return tally
