"""Checks schedules: finds those that do not fire, and those whose jobs no worker can run."""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.doctor.findings import NAMED, Finding, error, in_microseconds, info, ok, some, warning
from mainspring.doctor.snapshot import Snapshot
from mainspring.jobs.recurrence.rules import rule_of
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.plurals import format_count

LATE = 60 * MICROSECONDS


def check_schedules(snapshot: Snapshot) -> Iterator[Finding]:
    """Report schedules that do not fire, whose jobs no worker can run, or that differ from the declared ones."""
    found = [
        *_overdue(snapshot),
        *_unreadable(snapshot),
        *_without_dates(snapshot),
        *_unknown(snapshot),
        *_undeclared(snapshot),
        *_not_stored(snapshot),
        *_paused(snapshot),
    ]
    number = len(snapshot.schedules)
    yield from found or [
        ok(f"{format_count(number, 'schedule')}, all with dates to come" if number else "no schedules")
    ]


def _names(schedules: list[ScheduleRecord]) -> str:
    return some([schedule.name for schedule in schedules])


def _removal(schedules: list[ScheduleRecord]) -> tuple[str, ...]:
    return ("schedules", "remove", *(schedule.name for schedule in schedules[:NAMED]))


def _overdue(snapshot: Snapshot) -> Iterator[Finding]:
    overdue = snapshot.overdue(LATE)
    if not overdue:
        return
    longest = in_microseconds(snapshot.now - min(schedule.next_due or snapshot.now for schedule in overdue))
    if snapshot.alive:
        yield warning(
            f"no worker has fired {_names(overdue)}, overdue for up to {longest}, although workers run",
            "Any worker fires any schedule. The workers may have just started, or cannot write to the store.",
            "Run this again in a minute, and read the log of the workers.",
        )
    else:
        yield error(
            f"no worker fires {_names(overdue)}, overdue for up to {longest}",
            "Workers fire schedules, and no worker runs.",
            "Start one:",
            ("run",),
        )


def _unreadable(snapshot: Snapshot) -> Iterator[Finding]:
    unreadable = [schedule for schedule in snapshot.schedules if rule_of(schedule) is None]
    if unreadable:
        yield error(
            f"this version cannot read the rule of {_names(unreadable)}",
            "A newer Mainspring has written it, or its time zone is not in the time zone data of this machine. "
            "Workers like this one do not fire it.",
            "Upgrade Mainspring or tzdata here.",
        )


def _without_dates(snapshot: Snapshot) -> Iterator[Finding]:
    without = [schedule for schedule in snapshot.schedules if schedule.next_due is None and rule_of(schedule)]
    never = [schedule for schedule in without if schedule.last_due is None]
    ended = [schedule for schedule in without if schedule.last_due is not None]
    if never:
        yield warning(
            f"a schedule whose rule has no date never fires: {_names(never)}",
            "Its rule has no date, or the end of the schedule comes before its first date.",
            "Store the schedule again with another rule. To see its dates:",
            ("schedules", "preview", never[0].name),
        )
    if ended:
        yield info(
            f"the end of a schedule has passed, so it fires no more: {_names(ended)}",
            "",
            "Remove the schedule, if it is not needed:",
            _removal(ended),
        )


def _unknown(snapshot: Snapshot) -> Iterator[Finding]:
    """Report active schedules whose handler the workers or the application do not have.

    A paused or ended schedule submits no jobs and is skipped.
    """
    firing = [
        schedule for schedule in snapshot.schedules if schedule.next_due is not None and not schedule.is_paused
    ]
    known = snapshot.known
    unknown = [schedule for schedule in firing if snapshot.alive and schedule.type not in known]
    if unknown:
        yield warning(
            f"no worker has the handler of {_names(unknown)}: {some(sorted({s.type for s in unknown}))}",
            "The jobs of these schedules are submitted in time, and wait.",
            "Start a worker that has the handler; or remove the schedule, if its code is gone:",
            _removal(unknown),
        )
    handlers = snapshot.handlers
    foreign = [s for s in firing if handlers is not None and s.type not in handlers and s not in unknown]
    if foreign:
        yield warning(
            f"this application has no handler for {_names(foreign)}: {some(sorted({s.type for s in foreign}))}",
            "A schedule stays in the store when its declaration is removed, and submits jobs that no worker runs.",
            "Remove the schedule, unless another application has the handler:",
            _removal(foreign),
        )


def _undeclared(snapshot: Snapshot) -> Iterator[Finding]:
    undeclared = [
        schedule for schedule in snapshot.undeclared if schedule.next_due is not None and not schedule.is_paused
    ]
    if undeclared:
        yield warning(
            f"schedules fire although this application declares them no longer: {_names(undeclared)}",
            "A schedule stays in the store when its declaration is removed.",
            "Remove the schedule, unless another version of the code needs it:",
            _removal(undeclared),
        )


def _not_stored(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.stored_otherwise:
        yield warning(
            "schedules are stored differently than the application declares them: "
            f"{some(snapshot.stored_otherwise)}",
            "They fire as they are stored. The workers may run another version of the code.",
            "Restart the workers with this code.",
        )
    if snapshot.not_stored:
        yield warning(
            f"schedules of this application are not stored, so they do not fire: {some(snapshot.not_stored)}",
            "Schedules that are declared in code are stored when a worker starts, and none has started with "
            "this code.",
            "Restart the workers with this code.",
        )


def _paused(snapshot: Snapshot) -> Iterator[Finding]:
    paused = [schedule for schedule in snapshot.schedules if schedule.is_paused]
    if paused:
        yield info(
            f"schedules are paused and do not fire: {_names(paused)}",
            "A user has paused them.",
            "To resume them:",
            ("schedules", "resume", *(schedule.name for schedule in paused[:NAMED])),
        )
