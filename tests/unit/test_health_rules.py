"""The rule for the health of a worker: its texts, its kinds and its bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring.foreground.health_rules import (
    HealthLevel,
    HealthProblem,
    OwnHealth,
    ProblemKind,
    find_problem,
    passed_checks,
)
from mainspring.testing import ManualClock
from mainspring.worker_health import WorkerHealth, WorkerState

SECOND = 1_000_000_000
WELL = WorkerHealth(WorkerState.READY, 100 * SECOND, 100 * SECOND, None, None, 0)


def problem(level: HealthLevel, now: int = 100 * SECOND, **changes: Any) -> HealthProblem | None:
    return find_problem(msgspec.structs.replace(WELL, **changes), level, engine="the file", now=now)


@pytest.mark.parametrize("level", HealthLevel)
def test_a_worker_that_reports_nothing_else_is_well(level: HealthLevel) -> None:
    assert problem(level) is None
    assert problem(level, now=115 * SECOND) is None


@pytest.mark.parametrize("level", HealthLevel)
def test_a_worker_without_a_recent_report_is_silent(level: HealthLevel) -> None:
    text = "has reported no health for 16 s: it may hang or be suspended; restart it"
    assert problem(level, now=116 * SECOND) == (ProblemKind.SILENT, text)
    text = "has reported no health since before the last boot: it may hang or be suspended; restart it"
    assert problem(level, now=100 * SECOND - 1) == (ProblemKind.SILENT, text)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"state": WorkerState.STARTING}, ProblemKind.STARTING, "has not started yet; wait for it"),
        ({"state": WorkerState.STOPPING}, ProblemKind.STOPPING, "is stopping"),
        ({"trouble": "it is full"}, ProblemKind.STORE, "cannot use its store: it is full"),
        (
            {"answered_ns": 84 * SECOND},
            ProblemKind.STORE,
            "has had no answer from its store for 16 s; check the file",
        ),
        ({"answered_ns": None}, ProblemKind.STORE, "has had no answer from its store yet; check the file"),
    ],
)
def test_a_worker_that_cannot_work_is_live_and_not_ready(
    changes: dict[str, Any], kind: ProblemKind, text: str
) -> None:
    assert problem(HealthLevel.LIVE, **changes) is None
    assert problem(HealthLevel.READY, **changes) == problem(HealthLevel.HEALTHY, **changes) == (kind, text)


def test_an_answer_of_the_store_is_recent_for_fifteen_seconds() -> None:
    assert problem(HealthLevel.READY, answered_ns=85 * SECOND) is None
    assert problem(HealthLevel.READY, answered_ns=85 * SECOND - 1) is not None


def test_a_stalled_worker_is_ready_and_not_healthy() -> None:
    assert problem(HealthLevel.READY, stall="jobs wait") is None
    assert problem(HealthLevel.HEALTHY, stall="jobs wait") == (ProblemKind.STALLED, "jobs wait")


def test_the_own_worker_is_judged_by_its_last_report() -> None:
    clock = ManualClock()
    health = OwnHealth(clock)
    assert health.problem(HealthLevel.LIVE) is None
    starting = (ProblemKind.STARTING, "has not started yet; wait for it")
    assert health.problem(HealthLevel.READY) == starting
    now = clock.monotonic_ns()
    health.update(msgspec.structs.replace(WELL, turned_ns=now, answered_ns=now - 16 * SECOND))
    text = "has had no answer from its store for 16 s; check the store"
    assert health.problem(HealthLevel.READY) == (ProblemKind.STORE, text)
    assert health.problem(HealthLevel.LIVE) is None
    health.update(msgspec.structs.replace(WELL, turned_ns=now, answered_ns=now))
    assert health.problem(HealthLevel.HEALTHY) is None


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({}, set()),
        ({"turned_ns": 85 * SECOND}, set()),
        ({"turned_ns": 85 * SECOND - 1}, {"responsive"}),
        ({"turned_ns": 101 * SECOND}, {"responsive"}),
        ({"answered_ns": 85 * SECOND}, set()),
        ({"answered_ns": 85 * SECOND - 1}, {"store"}),
        ({"answered_ns": None, "state": WorkerState.STARTING}, {"store"}),
        ({"trouble": "the disk is full"}, {"store"}),
        ({"stall": "no worker claims mail"}, {"claims"}),
        ({"state": WorkerState.STOPPING, "answered_ns": 0, "stall": "no worker claims mail"}, set()),
    ],
)
def test_metrics_get_each_part_of_the_rule(changes: dict[str, Any], failed: set[str]) -> None:
    checks = passed_checks(msgspec.structs.replace(WELL, **changes), now=100 * SECOND)
    assert {name for name, is_passed in checks.items() if not is_passed} == failed
