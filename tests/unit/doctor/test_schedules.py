"""Checks of schedules."""

from typing import Any

from mainspring import Cron, Every
from mainspring.doctor.findings import Severity
from mainspring.doctor.schedules import check_schedules
from mainspring.doctor.snapshot import Snapshot
from mainspring.jobs.records import WorkerInfo, WorkerRecord
from mainspring.jobs.recurrence.rules import encode_rule
from mainspring.jobs.recurrence.schedule_records import Overlap, ScheduleRecord
from mainspring.jobs.timestamps import MICROSECONDS
from tests.unit.doctor.finding_assertions import assert_finding, is_all_ok

NOW = 1_800_000_000 * MICROSECONDS
MINUTE = 60 * MICROSECONDS
WORKER = WorkerRecord(1, WorkerInfo("host", 77, ("report",)), NOW, is_gone=False)


def schedule(name: str = "nightly", **changes: Any) -> ScheduleRecord:
    values: dict[str, Any] = {
        "type": "report",
        "queue": "default",
        "priority": 1,
        "payload": b"{}",
        "codec": "json",
        "rule": encode_rule(Cron("0 2 * * *")),
        "misfire": "once",
        "catch_up": 0,
        "overlap": Overlap.SKIP,
        "jitter": 0,
        "start": None,
        "end": None,
        "expires": None,
        "limits": (),
        "next_due": NOW + MINUTE,
    }
    return ScheduleRecord(name, **(values | changes))


def snapshot(*schedules: ScheduleRecord, **facts: Any) -> Snapshot:
    return Snapshot(now=NOW, schedules=schedules, **({"workers": [WORKER]} | facts))


def test_schedules_that_fire_are_in_order() -> None:
    assert is_all_ok(check_schedules(snapshot()))
    assert is_all_ok(check_schedules(snapshot(schedule(), schedule("often", rule=encode_rule(Every(60))))))
    assert is_all_ok(check_schedules(snapshot(schedule(), handlers=frozenset({"report"}))))


def test_a_schedule_that_does_not_fire_is_an_error_without_workers_and_a_warning_with_some() -> None:
    overdue = schedule(next_due=NOW - 5 * MINUTE)
    assert_finding(
        check_schedules(snapshot(overdue, workers=[])), Severity.ERROR, "no worker fires nightly", "5 min"
    )
    assert_finding(check_schedules(snapshot(overdue)), Severity.WARNING, "nightly", "5 min")
    assert is_all_ok(check_schedules(snapshot(schedule(next_due=NOW - MINUTE // 2))))


def test_a_rule_of_a_newer_version_or_an_unknown_zone_is_an_error() -> None:
    zone = encode_rule(Cron("0 2 * * *", tz="Europe/Berlin")).replace("Berlin", "Atlantis")
    for rule in ('{"kind":"moon"}', zone):
        assert_finding(
            check_schedules(snapshot(schedule(rule=rule))), Severity.ERROR, "cannot read the rule", "nightly"
        )


def test_a_schedule_without_a_date_never_fires_or_has_ended() -> None:
    assert_finding(check_schedules(snapshot(schedule(next_due=None))), Severity.WARNING, "never fires: nightly")
    ended = assert_finding(
        check_schedules(snapshot(schedule(next_due=None, last_due=NOW))), Severity.INFO, "end", "nightly"
    )
    assert ended.commands == (("schedules", "remove", "nightly"),)


def test_a_paused_schedule_is_a_note() -> None:
    paused = schedule(is_paused=True, next_due=NOW - 9 * MINUTE, type="unknown")
    finding = assert_finding(check_schedules(snapshot(paused)), Severity.INFO, "paused", "nightly")
    assert finding.commands == (("schedules", "resume", "nightly"),)


def test_jobs_of_a_schedule_need_a_handler() -> None:
    foreign = schedule(type="theirs")
    assert_finding(
        check_schedules(snapshot(foreign)), Severity.WARNING, "no worker has the handler", "nightly: theirs"
    )
    found = check_schedules(snapshot(foreign, workers=[], handlers=frozenset({"report"})))
    assert_finding(found, Severity.WARNING, "this application has no handler", "nightly: theirs")


def test_a_schedule_whose_declaration_is_gone_can_be_removed() -> None:
    gone = [schedule("hourly"), schedule("ended", next_due=None, last_due=NOW), schedule("paused", is_paused=True)]
    found = check_schedules(snapshot(gone[0], undeclared=gone))
    finding = assert_finding(found, Severity.WARNING, "declares them no longer: hourly")
    assert finding.commands == (("schedules", "remove", "hourly"),)


def test_what_is_declared_and_not_stored_does_not_fire() -> None:
    found = check_schedules(snapshot(not_stored=["nightly"]))
    assert_finding(found, Severity.WARNING, "not stored", "nightly")
    found = check_schedules(snapshot(schedule(), stored_otherwise=["nightly"]))
    assert_finding(found, Severity.WARNING, "stored differently", "nightly")
