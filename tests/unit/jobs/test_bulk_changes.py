"""Changes of all jobs that filters choose: counted first, then in steps, within the rights of a caller."""

from datetime import UTC, datetime, timedelta

import pytest

from mainspring import Mainspring, Retry
from mainspring.jobs import bulk_changes
from mainspring.jobs.audit import acting_as
from mainspring.jobs.bulk_changes import (
    BulkAction,
    BulkStep,
    JobSelection,
    change_jobs,
    check_ids,
    count_jobs,
    preview_jobs,
)
from mainspring.jobs.manager import JobManager
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import to_instant
from mainspring.testing import TimeTravel, time_travel

START = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def manager(app: Mainspring) -> JobManager:
    @app.job(name="shop.ship", search="order_id")
    def ship(order_id: int) -> None: ...

    @app.job(name="shop.mail", queue="mail")
    def mail(to: str) -> None: ...

    for number in range(10):
        ship.options(delay=HOUR, id=f"ship-{number}").submit(number)
    for number in range(5):
        mail.options(delay=HOUR, id=f"mail-{number}").submit(f"{number % 2}@example.org")
    return app.manager()


def run_all(manager: JobManager, selection: JobSelection, action: BulkAction, limit: int = 4) -> list[BulkStep]:
    steps: list[BulkStep] = []
    after: str | None = None
    while True:
        steps.append(change_jobs(manager, selection, action, after=after, limit=limit))
        after = steps[-1].after
        if after is None:
            return steps


def test_jobs_are_chosen_by_their_ids_within_the_rights_of_a_caller(manager: JobManager) -> None:
    ids = ("ship-3", "ship-5", "mail-1", "missing")
    chosen = JobSelection(ids=ids, types=frozenset({"shop.ship"}))
    assert count_jobs(manager, chosen, BulkAction.CANCEL).number == 2
    assert [job.id for job in preview_jobs(manager, chosen, BulkAction.CANCEL, 10)] == ["ship-3", "ship-5"]
    (step,) = run_all(manager, chosen, BulkAction.CANCEL)
    assert (step.changed, step.left) == (2, 0)
    canceled = manager.list(status=JobStatus.CANCELED)
    assert [job.id for job in canceled] == ["ship-3", "ship-5"]
    assert chosen.audit_details() == {"selected": 4}


@pytest.mark.parametrize(
    ("selection", "problem"),
    [
        (JobSelection(ids=("a",), text="x"), "cannot be combined"),
        (JobSelection(ids=tuple(map(str, range(501)))), "the limit is 500"),
        (JobSelection(ids=("",)), "id"),
    ],
)
def test_ids_that_cannot_be_used_are_refused(selection: JobSelection, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_ids(selection)


def statuses(app: Mainspring) -> dict[str, int]:
    return {status: number for status, number in app.counts().items() if number}


def test_jobs_are_counted_exactly_or_up_to_a_bound(manager: JobManager, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = JobSelection()
    assert str(count_jobs(manager, everything)) == "15"
    assert count_jobs(manager, JobSelection(type="ship"), BulkAction.CANCEL).number == 10
    assert count_jobs(manager, JobSelection(types=frozenset({"shop.mail"}))).number == 5
    assert count_jobs(manager, everything, BulkAction.RETRY).number == 0
    assert count_jobs(manager, JobSelection(status=JobStatus.FAILED), BulkAction.CANCEL).number == 0
    found = count_jobs(manager, JobSelection(arguments={"to": "1@example.org"}))
    assert (found.number, found.is_exact, found.scanned) == (2, True, 15)
    monkeypatch.setattr(bulk_changes, "MAX_COUNTED", 14)
    assert str(count_jobs(manager, everything)) == "≥ 14"
    monkeypatch.setattr(bulk_changes, "MAX_COUNTED", 15)
    assert str(count_jobs(manager, everything)) == "15"


def test_a_preview_changes_nothing(app: Mainspring, manager: JobManager) -> None:
    found = preview_jobs(manager, JobSelection(type="mail"), BulkAction.CANCEL, 3)
    assert [job.id for job in found] == ["mail-0", "mail-1", "mail-2"]
    assert statuses(app) == {"PENDING": 15}


def test_the_chosen_jobs_are_canceled_in_steps(app: Mainspring, manager: JobManager) -> None:
    steps = run_all(manager, JobSelection(type="ship"), BulkAction.CANCEL)
    assert [step.changed for step in steps] == [4, 4, 2]
    assert statuses(app) == {"PENDING": 5, "CANCELED": 10}


def test_jobs_that_come_after_the_count_are_left_alone(app: Mainspring) -> None:
    with time_travel(app, start=START) as travel:
        ping = app.job(name="ping")(lambda: None)
        ping.options(delay=HOUR).submit()
        travel.fast_forward(1)
        selection = JobSelection(until=travel.now)
        ping.options(delay=HOUR).submit()
        assert sum(step.changed for step in run_all(app.manager(), selection, BulkAction.CANCEL)) == 1
        assert statuses(app) == {"PENDING": 1, "CANCELED": 1}


def test_searched_jobs_are_changed(manager: JobManager) -> None:
    selection = JobSelection(arguments={"to": "1@example.org"})
    assert sum(step.changed for step in run_all(manager, selection, BulkAction.CANCEL, limit=1)) == 2
    assert [manager.get(f"mail-{number}").status for number in (0, 1)] == ["PENDING", "CANCELED"]


def test_rights_restrict_the_jobs(app: Mainspring, manager: JobManager) -> None:
    selection = JobSelection(queues=frozenset({"mail"}))
    assert sum(step.changed for step in run_all(manager, selection, BulkAction.CANCEL)) == 5
    assert statuses(app) == {"PENDING": 10, "CANCELED": 5}


def test_jobs_are_rescheduled_and_due_ones_are_not_run_again(app: Mainspring, manager: JobManager) -> None:
    due = manager.engine.now() + 7_200_000_000
    step = change_jobs(manager, JobSelection(type="mail"), BulkAction.RESCHEDULE, due=due)
    assert (step.changed, step.after) == (5, None)
    assert to_instant(app.get("mail-0").due, "due") == due
    assert change_jobs(manager, JobSelection(type="mail"), BulkAction.RUN_NOW).changed == 5
    assert change_jobs(manager, JobSelection(type="mail"), BulkAction.RUN_NOW) == BulkStep(left=5)
    with pytest.raises(ValueError, match="pass due="):
        change_jobs(manager, JobSelection(), BulkAction.RESCHEDULE)


def test_dead_letters_are_retried(app: Mainspring, travel: TimeTravel) -> None:
    is_down = [True]

    @app.job(name="fail", retry=Retry(max_attempts=1))
    def fail(number: int) -> None:
        if is_down:
            raise ValueError(number)

    fail.submit_many([{"number": number} for number in range(3)])
    travel.settle()
    is_down.clear()
    app.dead_letters.replay(app.jobs()[0].id)
    assert count_jobs(app.manager(), JobSelection(), BulkAction.RETRY).number == 2
    assert sum(step.changed for step in run_all(app.manager(), JobSelection(), BulkAction.RETRY)) == 2
    travel.settle()
    assert statuses(app) == {"COMPLETED": 3}


def test_a_step_has_one_audit_entry_without_values(app: Mainspring, manager: JobManager) -> None:
    selection = JobSelection(type="mail", arguments={"to": "1@example.org"}, text="example")
    with acting_as("alice"):
        change_jobs(manager, selection, BulkAction.CANCEL)
        change_jobs(manager, JobSelection(type="ship"), BulkAction.RUN_NOW)
    run_now, cancel = app.audit()
    assert (cancel.action, cancel.count, cancel.target) == ("job.cancel", 2, None)
    assert cancel.details == {"type": "mail", "arguments": ["to"], "text": True}
    assert (run_now.action, run_now.count) == ("job.run_now", 10)


def test_a_cursor_of_another_action_is_refused(manager: JobManager) -> None:
    with pytest.raises(ValueError, match="after must be"):
        change_jobs(manager, JobSelection(), BulkAction.RETRY, after="PENDING:1")
