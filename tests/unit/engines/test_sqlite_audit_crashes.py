"""A crash at any step of a change leaves the change with its audit entry, or neither of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from mainspring import JobStatus, Mainspring
from mainspring.jobs.audit import Actor, AuditQuery
from mainspring.jobs.audit_drafts import AuditDraft
from mainspring.jobs.commands import CancelJob, Command, Delete, Edit, PauseQueue, PauseSchedule, Replay
from mainspring.testing.conformance.bench import Bench
from mainspring.testing.conformance.schedule_driver import NAME, ScheduleDriver
from tests.support import PATIENCE
from tests.unit.engines.crash_points import CrashExperiment, OpenedStore, Operation, PreparedStore, snapshot

pytestmark = pytest.mark.long

CANCELS = """
import sys
from mainspring import Mainspring, acting_as

with Mainspring(sys.argv[1]) as app, acting_as("alice"):
    for number in range(100_000):
        app.cancel(f"job-{number}")
        print(number, flush=True)
"""


class JobsAndSchedule(PreparedStore):
    """Two pending jobs, a dead letter and a schedule."""

    def prepare(self, bench: Bench) -> None:
        bench.bury("letter")
        bench.submit("a", "b", after=3_600)
        ScheduleDriver(bench).put()


def draft(store: OpenedStore, *, is_bulk: bool = False) -> AuditDraft:
    return AuditDraft(Actor(name="alice", source="test"), store.bench.now, is_bulk=is_bulk)


def change(*commands: Command) -> Operation:
    return lambda store: store.engine.change(commands, audit=draft(store, is_bulk=len(commands) > 1))


def arrange(arrangement: Any) -> Operation:
    return lambda store: store.engine.arrange([arrangement], audit=draft(store))


def trigger(store: OpenedStore) -> Any:
    return store.engine.fire([ScheduleDriver(store.bench).trigger("by hand")], audit=draft(store))


OPERATIONS: dict[str, Callable[[OpenedStore], Any]] = {
    "cancel": change(CancelJob("a")),
    "cancel many": change(CancelJob("a"), CancelJob("b"), CancelJob("unknown")),
    "replay": change(Replay("letter", "copy", 0)),
    "edit": change(Edit("letter", b"[2]", "json")),
    "purge": change(Delete("letter", JobStatus.FAILED)),
    "pause a queue": arrange(PauseQueue("mail", is_paused=True)),
    "pause a schedule": arrange(PauseSchedule(NAME, is_paused=True, next_due=None)),
    "trigger": trigger,
}


def content(bench: Bench) -> tuple[Any, ...]:
    engine = bench.engine
    entries = [(entry.action, entry.count) for entry in engine.audit_entries(AuditQuery(limit=10))]
    return snapshot(bench), engine.paused_queues(), engine.schedules(), entries


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedStore:
    return JobsAndSchedule(tmp_path_factory.mktemp("prepared") / "jobs.db")


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_crash_leaves_a_change_with_its_entry_or_neither(
    prepared: PreparedStore, tmp_path: Path, operation: Operation
) -> None:
    experiment = CrashExperiment(prepared, tmp_path, operation, look=content)
    before: tuple[Any, ...] = cast("Any", experiment.before)
    after: tuple[Any, ...] = cast("Any", experiment.after)
    assert (before[-1], len(after[-1])) == ([], 1)
    assert before[:-1] != after[:-1]

    def look(store: OpenedStore, is_committed: bool) -> None:  # noqa: FBT001 - an answer, not an option
        assert content(store.bench) == (after if is_committed else before)

    experiment.kill_at_each_step(look)
    experiment.crash_at_each_step(look)


def test_a_killed_process_leaves_an_entry_for_each_job_that_it_has_canceled(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Mainspring(url, durability="normal") as app:
        later = app.job(name="later")(lambda: None)
        for number in range(2_000):
            later.options(id=f"job-{number}", delay=3_600).submit()
        command = [sys.executable, "-c", CANCELS, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            for _ in range(20):
                assert process.stdout.readline()
            process.kill()
            process.wait(PATIENCE)
        canceled = {job.id for job in app.jobs(status=JobStatus.CANCELED, limit=2_000)}
        entries = app.audit(2_000)
    assert len(canceled) >= 20
    assert len(entries) == len(canceled)
    assert {entry.target for entry in entries} == canceled
