"""Schedules made by customers at run time: put, paused, changed, and a history of what was left out."""

import logging
from contextlib import chdir
from datetime import UTC, datetime
from tempfile import TemporaryDirectory

from mainspring import CatchUp, Every, JobStatus, Mainspring
from mainspring.testing import time_travel

logging.getLogger("mainspring").setLevel(logging.CRITICAL)  # occurrences without a job are logged, too

app = Mainspring("sqlite:///shop.db")
sent: list[str] = []

MONDAY = datetime(2027, 3, 1, 7, tzinfo=UTC)


@app.job
def send_digest(customer: str, *, is_long: bool = False) -> None:
    sent.append(f"{customer}{' (long)' if is_long else ''}")


with TemporaryDirectory() as folder, chdir(folder), app:
    with time_travel(app, start=MONDAY, isolated=False) as travel:
        app.schedules.put("digest of ann", send_digest, "0 8 * * *", arguments=("ann",))
        app.schedules.put(
            "digest of bob", send_digest, "0 8 * * *", arguments={"customer": "bob", "is_long": True}
        )
        app.schedules.put("digest of eve", send_digest, Every(3600), arguments=("eve",), misfire=CatchUp(3))
        travel.fast_forward(hours=2)
        print(f"Monday, 09:00: {sorted(sent)}")
        assert sorted(sent) == ["ann", "bob (long)", "eve", "eve"]

        app.schedules.pause("digest of bob")
        app.schedules.put("digest of ann", send_digest, "0 18 * * *", arguments=("ann",))  # an upsert, by name
        for schedule in app.schedules.list():
            following = [f"{at:%a %H:%M}" for at in schedule.upcoming(2)]
            print(f"  {schedule.name}: {'paused' if schedule.is_paused else following}")

    sent.clear()
    # All workers are down from Monday 09:00 to Wednesday 10:30. Then one comes back.
    with time_travel(app, start=MONDAY.replace(day=3, hour=10, minute=30), isolated=False) as travel:
        travel.settle()
        print(f"Wednesday, 10:30: {sorted(sent)}")
        assert sorted(sent) == ["ann", "eve", "eve", "eve"]  # misfire: 'once' by default, the latest three for eve
        for name in ("digest of ann", "digest of bob", "digest of eve"):
            for left_out in app.schedules.history(name):
                print(f"  {name}: {left_out.kind}, {left_out.note}")
        app.schedules.resume("digest of bob")  # from now on: occurrences of the pause do not fire
        travel.fast_forward(days=1)
        assert "bob (long)" in sent
        app.schedules.remove("digest of bob")

    made = [job for job in app.jobs(status=JobStatus.COMPLETED, limit=100) if job.schedule == "digest of ann"]
    print(f"jobs of ann's schedule: {[f'{job.occurrence:%a %H:%M}' for job in made]}")
