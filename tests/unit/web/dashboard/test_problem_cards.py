"""The problems that the overview shows: when each appears, its remedy, and their order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from mainspring.doctor import Finding, Report, Severity
from mainspring.jobs.worker_status import Liveness, WorkerStatus
from mainspring.web.api.store_state import GroupView, StatisticsView, UpcomingSlotView
from mainspring.web.dashboard.page import PageCall
from mainspring.web.dashboard.problem_cards import ProblemCard, find_problems

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)


class Links:
    """Stands for the call of a page: the cards need only its links."""

    def url(self, *parts: object, **_query: object) -> str:
        return "/" + "/".join(map(str, parts))


def group(**values: Any) -> GroupView:
    given: dict[str, Any] = {
        "queue": "mail",
        "type": "send",
        "due": 0,
        "blocked": 0,
        "scheduled": 0,
        "running": 0,
        "dead_letters": 0,
        "oldest_due": None,
        "oldest_blocked": None,
        "is_exact": True,
    }
    return GroupView(**(given | values))


def statistics(*groups: GroupView, **values: Any) -> StatisticsView:
    given: dict[str, Any] = {
        "at": NOW,
        "due": sum(each.due for each in groups),
        "blocked": sum(each.blocked for each in groups),
        "scheduled": sum(each.scheduled for each in groups),
        "running": 0,
        "dead_letters": sum(each.dead_letters for each in groups),
        "oldest_due": None,
        "oldest_blocked": None,
        "is_exact": True,
        "groups": list(groups),
        "paused_queues": [],
        "fullest_slot": None,
        "workers": 1,
        "process": None,
    }
    return StatisticsView(**(given | values))


def worker(**values: Any) -> WorkerStatus:
    given: dict[str, Any] = {
        "number": 1,
        "name": "web-1:4711",
        "process": 4711,
        "types": ("send",),
        "queues": None,
        "state": Liveness.ALIVE,
        "heartbeat": NOW,
    }
    return WorkerStatus(**(given | values))


def problems(
    found: StatisticsView, *workers: WorkerStatus, findings: tuple[Finding, ...] | None = None
) -> list[ProblemCard]:
    report = None if findings is None else Report(store="memory://", findings=findings)
    return find_problems(cast(PageCall, Links()), found, workers, report)


def test_a_store_whose_jobs_run_has_no_problems() -> None:
    assert problems(statistics(group(due=3, oldest_due=0.4, scheduled=10)), worker()) == []


@pytest.mark.parametrize(
    "only",
    [
        worker(types=("other",)),
        worker(queues=("orders",)),
        worker(state=Liveness.DEAD),
    ],
)
def test_due_jobs_that_no_living_worker_runs_are_an_error(only: WorkerStatus) -> None:
    first = problems(statistics(group(due=3, oldest_due=45.0)), only)[0]
    assert (first.severity, first.what) == (Severity.ERROR, "No worker runs send")
    assert "3 jobs of the queue mail" in first.reason
    assert "45 s" in first.reason
    assert first.commands == ["mainspring run MODULE:APP"]


def test_late_jobs_are_a_warning_even_if_a_worker_serves_them() -> None:
    (card,) = problems(statistics(group(due=1, oldest_due=12.0)), worker())
    assert (card.severity, card.what) == (Severity.WARNING, "1 job waits for a free slot, the oldest for 12 s")
    assert problems(statistics(group(due=1, oldest_due=9.0)), worker()) == []


def test_workers_that_are_silent_or_dead_are_named() -> None:
    silent, dead = worker(state=Liveness.SILENT), worker(number=2, name="web-2:1", state=Liveness.DEAD)
    found = problems(statistics(), worker(number=3), silent, dead)
    assert [card.what for card in found] == ["Worker web-1:4711 is silent", "Worker web-2:1 is dead"]
    assert problems(statistics(workers=None), silent) == [], "a restricted token does not see all workers"


def test_a_paused_queue_is_a_problem_only_if_jobs_wait_for_it() -> None:
    paused = {"paused_queues": ["mail"]}
    assert problems(statistics(group(scheduled=5), **paused), worker()) == []
    (card,) = problems(statistics(group(blocked=2, oldest_blocked=90.0), **paused), worker())
    assert card.what == "The queue mail is paused, and 2 jobs wait for it"
    assert card.commands == ["mainspring queues resume mail"]


def test_dead_letters_and_hot_slots_are_warnings() -> None:
    slot = UpcomingSlotView(queue="mail", type="send", at=NOW, jobs=5_000, at_once=5_000, average=2.0, is_hot=True)
    found = problems(statistics(group(dead_letters=1), fullest_slot=slot), worker())
    assert [card.what for card in found] == [
        "1 dead letter was not replayed",
        "5,000 jobs of send are due within the same quarter of a second",
    ]


def test_findings_of_doctor_follow_and_the_worst_is_first() -> None:
    def finding(check: str, severity: Severity) -> Finding:
        return Finding(check=check, severity=severity, what=f"{check} is wrong", commands=(("doctor", "--all"),))

    findings = (
        finding("disk", Severity.ERROR),
        finding("python", Severity.OK),
        finding("clock", Severity.INFO),
        finding("dead-letters", Severity.WARNING),
    )
    found = problems(statistics(group(dead_letters=2)), worker(), findings=findings)
    assert [card.what for card in found] == ["Disk is wrong", "2 dead letters were not replayed"]
    assert found[0].commands == ["mainspring doctor --all"]
