"""A month of schedules in milliseconds, and what happens in the two nights in which the clocks change."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from mainspring import Cron, Mainspring, current_job
from mainspring.testing import time_travel

BERLIN = ZoneInfo("Europe/Berlin")

app = Mainspring("sqlite:///shop.db")
ran: Counter[str] = Counter()
reports: list[datetime] = []


@app.cron("30 2 * * *", tz="Europe/Berlin")  # 02:30 on the clocks of Berlin, whatever they do
def nightly_report() -> None:
    ran["nightly report"] += 1
    reports.append(current_job().due.astimezone(BERLIN))


@app.cron("0 9 * * MON-FRI", tz="Europe/Berlin")
@app.job(queue="mail")  # options of the handler go below
def good_morning() -> None:
    ran["good morning"] += 1


@app.cron("@monthly")
def bill() -> None:
    ran["bill"] += 1


@app.every(timedelta(hours=6))
def sync() -> None:
    ran["sync"] += 1


with time_travel(app, start=datetime(2027, 3, 1, 12, tzinfo=UTC)) as travel:
    travel.fast_forward(days=31)

print(f"March 2027: {dict(ran)}")
for local in reports[-6:-2]:
    print(f"  report on {local:%a %d %b at %H:%M %Z}")  # 02:30 did not exist on the 28th: an hour later

assert ran == {"nightly report": 31, "good morning": 23, "bill": 1, "sync": 124}
assert [local.hour for local in reports].count(3) == 1

# What will a rule do in October, when 02:30 comes twice? Its schedule knows.
with time_travel(app, start=datetime(2027, 10, 30, 12, tzinfo=UTC)):
    for fold in ("first", "second", "both"):
        rule = Cron("30 2 * * *", tz="Europe/Berlin", dst_fold=fold)
        schedule = app.schedules.put(f"report-{fold}", nightly_report, rule)
        print(f"dst_fold={fold!r}: {', '.join(f'{at:%d %b %H:%M %Z}' for at in schedule.upcoming(3))}")
