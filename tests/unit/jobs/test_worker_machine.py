"""The state machine of a worker, without threads: each test reports events and looks at the decisions."""

from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.jobs.engine import Taken
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.records import Lease, Outcome, OutcomeKind
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.worker import machine as m
from mainspring.jobs.worker.lease_table import LeasedJob, LeaseTable
from tests.unit.jobs.leases import make_lease

MILLISECOND = 1_000  # in microseconds, as the engine counts
SECOND = 1_000 * MILLISECOND
START_LEAD = 10 * MILLISECOND
BEGIN = 1_800_000_000 * SECOND


class Driver:
    """Reports events to a machine, and keeps its decisions. Instants are microseconds from the begin."""

    def __init__(self, threads: int = 2) -> None:
        registry = HandlerRegistry()
        registry.add(Handler("ping", lambda: None, HandlerOptions(), JsonSerializer()))
        self.table = LeaseTable(
            registry, lambda *_report: None, threads=threads, coroutines=1, processes=1, queues=None
        )
        self.machine = m.WorkerMachine(self.table)
        self.engine_time = BEGIN
        self.monotonic = 0
        self._number_of_leases = 0

    def now(self) -> m.ClockReading:
        return m.ClockReading(self.engine_time, self.monotonic, START_LEAD)

    def report(self, event: Any, *arguments: Any) -> list[m.Decision]:
        """Report an event, and return the decisions except those about schedules."""
        event(self.now(), *arguments)
        return [found for found in self.machine.take_decisions() if not isinstance(found, m.ExpectFiring)]

    def enroll(self, number: int = 1) -> list[m.Decision]:
        return self.report(self.machine.enrolled, number)

    def answer(self, *leases: Lease, worker: int = 1, **answer: Any) -> list[m.Decision]:
        """Answer the fetch in flight."""
        for name in ("next_due", "next_look"):
            if name in answer:
                answer[name] += BEGIN
        taken = Taken(list(leases), **{"next_due": None, "is_more": False, "stops": [], **answer})
        return self.report(self.machine.fetched, worker, taken)

    def pass_time(self, microseconds: int) -> list[m.Decision]:
        self.engine_time += microseconds
        self.monotonic += microseconds * 1_000
        return self.report(self.machine.time_passed)

    def wakeup(self) -> int | None:
        """The instant of the next wake-up."""
        wakeup = self.machine.next_wakeup(self.now())
        return None if wakeup is None else wakeup // 1_000

    def lease(self, due: int = 0, *, is_started: bool = True, crashes: int = 0) -> Lease:
        self._number_of_leases += 1
        lease = replace(make_lease(crashes=crashes), type="ping", id=f"job-{self._number_of_leases}")
        return replace(lease, ref=self._number_of_leases, due=BEGIN + due, is_started=is_started)

    def settle(self, *jobs: LeasedJob) -> list[m.Decision]:
        outcomes = [Outcome(job.lease, OutcomeKind.COMPLETED) for job in jobs]
        return self.report(self.machine.settled, outcomes)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.enroll()
    return driver


def kinds(decisions: list[m.Decision]) -> list[type]:
    return [type(decision) for decision in decisions]


def jobs_of(decision: m.Decision) -> list[LeasedJob]:
    assert isinstance(decision, m.Run | m.CommitStarts | m.EndLeases | m.StopHandlers)
    return decision.jobs


# -- when it fetches


def test_it_fetches_when_it_is_enrolled() -> None:
    (fetch,) = Driver().enroll(7)
    assert isinstance(fetch, m.Fetch)
    assert (fetch.worker, fetch.lead, fetch.start_lead) == (7, m.LEAD, START_LEAD)
    assert [(demand.types, demand.starts) for demand in fetch.demands] == [(("ping",), 2)]


def test_a_new_machine_waits_for_nothing() -> None:
    driver = Driver()
    machine = driver.machine
    assert (machine.is_settled, machine.awaits_leases, driver.wakeup()) == (True, False, None)
    assert (machine.fetch_error, machine.interrupted, machine.is_stopping) == (None, None, False)


def test_before_it_is_enrolled_it_fetches_nothing() -> None:
    driver = Driver()
    assert driver.report(driver.machine.woken) == []


def test_one_fetch_is_in_flight_at_a_time(driver: Driver) -> None:
    assert driver.report(driver.machine.woken) == []
    assert driver.machine.is_settled is False
    assert kinds(driver.answer()) == [m.Fetch]
    assert driver.answer() == []
    assert driver.machine.is_settled is True


def test_it_fetches_at_the_instant_that_the_engine_names(driver: Driver) -> None:
    driver.answer(next_look=2_500 * MILLISECOND)
    assert driver.wakeup() == 2_500 * MILLISECOND
    assert driver.pass_time(2_499 * MILLISECOND) == []
    assert kinds(driver.pass_time(MILLISECOND)) == [m.Fetch]
    assert driver.wakeup() is None


def test_it_fetches_a_job_a_lead_before_it_is_due(driver: Driver) -> None:
    driver.answer(next_due=60 * SECOND)
    assert driver.wakeup() == 60 * SECOND - m.LEAD


def test_a_job_due_within_the_lead_that_was_left_is_fetched_when_it_is_due(driver: Driver) -> None:
    driver.answer(next_due=SECOND // 2)
    assert driver.wakeup() == SECOND // 2 - START_LEAD


def test_the_earlier_of_two_reasons_decides(driver: Driver) -> None:
    driver.answer(next_due=60 * SECOND, next_look=7 * MILLISECOND)
    assert driver.wakeup() == 7 * MILLISECOND


@pytest.mark.parametrize("is_started", [False, True], ids=["held", "started before it is due"])
def test_a_fetch_that_comes_before_a_job_decides(driver: Driver, *, is_started: bool) -> None:
    driver.answer(driver.lease(800 * MILLISECOND, is_started=is_started), next_look=100 * MILLISECOND)
    assert driver.wakeup() == 100 * MILLISECOND


@pytest.mark.parametrize("instant", [-5, 0])
def test_an_instant_that_has_passed_does_not_make_it_spin(driver: Driver, instant: int) -> None:
    driver.answer(next_look=instant)
    assert driver.wakeup() == m.MIN_PAUSE


@pytest.mark.parametrize("instant", [None, BEGIN + SECOND])
def test_the_next_occurrence_of_a_schedule_is_passed_on(driver: Driver, instant: int | None) -> None:
    taken = Taken([], next_due=None, is_more=False, stops=[], next_firing=instant)
    driver.machine.fetched(driver.now(), 1, taken)
    assert driver.machine.take_decisions() == ([] if instant is None else [m.ExpectFiring(instant)])


def test_without_slots_it_fetches_at_the_instant_that_the_engine_names(driver: Driver) -> None:
    driver.answer(driver.lease(), driver.lease(), next_look=5 * MILLISECOND)
    (fetch,) = driver.pass_time(5 * MILLISECOND)
    assert isinstance(fetch, m.Fetch)
    assert [demand.starts for demand in fetch.demands] == [0]


def test_jobs_that_were_left_for_lack_of_room_are_fetched_when_a_slot_is_free(driver: Driver) -> None:
    driver.answer(driver.lease(), driver.lease(), is_more=True)
    assert kinds(driver.settle(driver.table.jobs()[0])) == [m.Fetch]


def test_while_more_jobs_are_due_than_it_has_slots_it_fetches_more_of_them(driver: Driver) -> None:
    driver.answer(driver.lease(), driver.lease(), is_more=True)
    (fetch,) = driver.settle(driver.table.jobs()[0])
    assert isinstance(fetch, m.Fetch)
    assert [demand.starts for demand in fetch.demands] == [
        5
    ]  # two slots and a window of two, but for one that runs


def test_a_slot_that_became_free_during_a_fetch_is_used(driver: Driver) -> None:
    driver.answer(driver.lease(), driver.lease())
    driver.report(driver.machine.woken)
    assert driver.settle(driver.table.jobs()[0]) == []
    assert kinds(driver.answer(next_due=60 * SECOND)) == [m.Fetch]


@pytest.mark.parametrize("answer", [{}, {"next_due": 60 * SECOND}], ids=["no job", "a job that is due later"])
def test_with_no_due_jobs_left_a_free_slot_is_no_reason_to_fetch(driver: Driver, answer: dict[str, int]) -> None:
    driver.answer(driver.lease(), **answer)
    assert driver.settle(driver.table.jobs()[0]) == []


def test_after_a_suspect_it_fetches_the_next_one(driver: Driver) -> None:
    driver.answer(driver.lease(crashes=2))
    assert kinds(driver.settle(driver.table.jobs()[0])) == [m.Fetch]


def test_a_fetch_that_failed_is_repeated_after_a_pause(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    error = OSError("the disk is gone")
    assert driver.report(driver.machine.fetch_failed, error) == []
    assert caplog.messages == ["the worker could not fetch jobs and tries again in a second: the disk is gone"]
    assert (driver.machine.fetch_error, driver.wakeup()) == (error, SECOND)
    assert driver.pass_time(SECOND - 1) == []
    assert kinds(driver.pass_time(1)) == [m.Fetch]
    driver.answer()
    assert driver.machine.fetch_error is None


def test_a_fetch_that_fails_for_a_minute_is_logged_once_more(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(62):
        driver.report(driver.machine.fetch_failed, OSError("the disk is gone"))
        driver.pass_time(SECOND)
    assert caplog.messages == [
        "the worker could not fetch jobs and tries again in a second: the disk is gone",
        "the worker could not fetch jobs for 60 s and tries again every second: the disk is gone",
    ]


# -- held jobs


def test_a_held_job_is_started_a_start_lead_before_it_is_due_and_runs_when_it_is_due(driver: Driver) -> None:
    driver.answer(driver.lease(SECOND, is_started=False))
    assert driver.wakeup() == SECOND - START_LEAD
    assert driver.pass_time(SECOND - START_LEAD - 1) == []
    (commit,) = driver.pass_time(1)
    assert isinstance(commit, m.CommitStarts)
    assert commit.worker == 1
    assert driver.report(driver.machine.starts_answered, commit.jobs, [True]) == []
    assert driver.wakeup() == SECOND
    assert driver.pass_time(START_LEAD - 1) == []
    (run,) = driver.pass_time(1)
    assert isinstance(run, m.Run)
    assert [(job.ready_at, job.lease.is_started) for job in run.jobs] == [(BEGIN + SECOND, True)]


def test_a_start_that_is_refused_runs_nothing(driver: Driver) -> None:
    driver.answer(driver.lease(SECOND, is_started=False))
    (commit,) = driver.pass_time(SECOND)
    assert driver.report(driver.machine.starts_answered, jobs_of(commit), [False]) == []
    assert (len(driver.table), driver.wakeup()) == (0, None)


def test_the_slot_of_a_refused_start_is_used_for_a_job_that_was_left(driver: Driver) -> None:
    driver.answer(*[driver.lease(SECOND, is_started=False) for _ in range(2)])
    (commit,) = driver.pass_time(SECOND)
    driver.report(driver.machine.woken)
    assert driver.answer(is_more=True) == []
    assert kinds(driver.report(driver.machine.starts_answered, jobs_of(commit), [False, False])) == [m.Fetch]


def test_accepted_starts_free_no_slot(driver: Driver) -> None:
    driver.answer(*[driver.lease(SECOND, is_started=False) for _ in range(2)])
    (commit,) = driver.pass_time(SECOND)
    driver.report(driver.machine.woken)
    assert driver.answer(is_more=True) == []
    assert kinds(driver.report(driver.machine.starts_answered, jobs_of(commit), [True, True])) == [m.Run]


def test_every_start_needs_an_answer(driver: Driver) -> None:
    driver.answer(*[driver.lease(SECOND, is_started=False) for _ in range(2)])
    (commit,) = driver.pass_time(SECOND)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        driver.report(driver.machine.starts_answered, jobs_of(commit), [True])


def test_starts_wait_for_the_commit_in_flight_and_are_committed_together(driver: Driver) -> None:
    leases = [driver.lease(due, is_started=False) for due in (SECOND, 2 * SECOND, 2 * SECOND)]
    driver.answer(*leases)
    (first,) = driver.pass_time(SECOND)
    assert driver.pass_time(SECOND) == []
    second, run = driver.report(driver.machine.starts_answered, jobs_of(first), [True])
    assert (kinds([second, run]), len(jobs_of(second))) == ([m.CommitStarts, m.Run], 2)


def test_a_start_that_could_not_be_stored_hands_the_job_back(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.answer(driver.lease(SECOND, is_started=False))
    (commit,) = driver.pass_time(SECOND)
    (end,) = driver.report(driver.machine.starts_failed, jobs_of(commit), OSError("full"))
    assert (jobs_of(end), isinstance(end, m.EndLeases) and end.kind) == (jobs_of(commit), OutcomeKind.HANDED_BACK)
    assert caplog.messages == ["the worker could not store the start of 1 job and hands the leases back: full"]
    assert vars(caplog.records[0]).items() >= jobs_of(commit)[0].context.log_fields.items()


def test_after_a_commit_that_failed_other_starts_are_committed(driver: Driver) -> None:
    driver.answer(*[driver.lease(due, is_started=False) for due in (SECOND, 2 * SECOND, 3 * SECOND)])
    (first,) = driver.pass_time(SECOND)
    assert driver.pass_time(SECOND) == []
    second, end = driver.report(driver.machine.starts_failed, jobs_of(first), OSError("full"))
    assert kinds([second, end]) == [m.CommitStarts, m.EndLeases]
    driver.report(driver.machine.starts_failed, jobs_of(second), OSError("full"))
    assert kinds(driver.pass_time(SECOND)) == [m.CommitStarts]


def test_more_jobs_are_fetched_ahead_when_held_ones_start(driver: Driver) -> None:
    driver.answer(driver.lease(SECOND // 2, is_started=False), next_due=SECOND // 2 + 20 * MILLISECOND)
    assert kinds(driver.pass_time(SECOND // 2 - START_LEAD)) == [m.Fetch, m.CommitStarts]


def test_one_fetch_ahead_is_enough_until_the_engine_has_left_more(driver: Driver) -> None:
    leases = [driver.lease(due * MILLISECOND, is_started=False) for due in (300, 400)]
    driver.answer(*leases, next_due=450 * MILLISECOND)
    assert kinds(driver.pass_time(290 * MILLISECOND)) == [m.Fetch, m.CommitStarts]
    driver.answer()
    assert driver.pass_time(100 * MILLISECOND) == []  # the start waits for the commit in flight


def test_after_a_clock_jump_held_jobs_go_back_and_are_fetched_again(driver: Driver) -> None:
    driver.answer(driver.lease(SECOND, is_started=False), driver.lease(0), next_due=3_000 * SECOND)
    driver.engine_time -= 3_600 * SECOND
    end, fetch = driver.report(driver.machine.clock_jumped)
    assert kinds([end, fetch]) == [m.EndLeases, m.Fetch]
    assert [job.lease.id for job in jobs_of(end)] == ["job-1"]
    assert driver.wakeup() is None


# -- ready jobs


def test_a_ready_job_that_finds_no_slot_is_handed_back(driver: Driver) -> None:
    (run,) = driver.answer(*[driver.lease() for _ in range(3)])
    first, second, third = jobs_of(run)
    for job in (first, second):
        assert job.claim_start()
    assert driver.wakeup() == m.PATIENCE_NS // 1_000
    (end,) = driver.pass_time(m.PATIENCE_NS // 1_000)
    assert isinstance(end, m.EndLeases)
    assert (end.jobs, end.kind) == ([third], OutcomeKind.HANDED_BACK)
    assert not third.claim_start()


def test_a_job_that_started_in_time_is_not_handed_back(driver: Driver) -> None:
    (run,) = driver.answer(*[driver.lease() for _ in range(3)])
    assert [job.claim_start() for job in jobs_of(run)] == [True] * 3
    assert driver.pass_time(SECOND) == []


def test_a_request_to_stop_reaches_a_running_job_once(driver: Driver) -> None:
    (run,) = driver.answer(driver.lease())
    driver.report(driver.machine.woken)
    (stop,) = driver.answer(stops=["job-1", "unknown"])
    assert jobs_of(stop) == jobs_of(run)
    driver.report(driver.machine.woken)
    (again,) = driver.answer(stops=["job-1"])
    assert jobs_of(again) == []


# -- enrolling again


def test_a_worker_that_was_declared_dead_hands_its_jobs_back_and_enrolls_again(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    (run,) = driver.answer(driver.lease(), driver.lease(SECOND, is_started=False))
    running = jobs_of(run)[0]
    assert running.claim_start()
    assert kinds(driver.report(driver.machine.declared_dead, 1)) == [m.Enroll]
    (message,) = caplog.messages
    assert message == (
        "worker 1 counts as dead, because the store got no heartbeat of it in time, and registers again; was its "
        "process suspended or cut off from the store, or did the store refuse changes?"
    )
    assert driver.report(driver.machine.woken) == []
    end, leave, fetch = driver.enroll(2)
    assert isinstance(end, m.EndLeases)
    assert [(job.lease.id, job.worker) for job in end.jobs] == [("job-2", 1)]
    assert isinstance(leave, m.Leave)
    assert leave.worker == 1
    assert isinstance(fetch, m.Fetch)
    assert fetch.worker == 2
    driver.settle(*end.jobs)
    assert driver.table.jobs() == [running]
    assert driver.wakeup() is None


def test_the_death_of_a_former_number_changes_nothing(driver: Driver) -> None:
    driver.report(driver.machine.declared_dead, 1)
    driver.enroll(2)
    assert driver.report(driver.machine.declared_dead, 1) == []


def test_a_fetch_that_finds_the_worker_dead_makes_it_enroll_again(driver: Driver) -> None:
    assert kinds(driver.answer(is_alive=False)) == [m.Enroll]


def test_an_answer_to_a_former_number_is_not_taken_for_one_to_the_new_number(driver: Driver) -> None:
    driver.report(driver.machine.declared_dead, 1)
    assert kinds(driver.enroll(2)) == [m.Leave]
    assert kinds(driver.answer(is_alive=False, worker=1)) == [m.Fetch]


def test_an_enrollment_that_failed_is_repeated_by_way_of_a_fetch(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    error = OSError("gone")
    driver.answer(is_alive=False)
    assert driver.report(driver.machine.enroll_failed, error) == []
    assert caplog.messages[-1] == "the worker could not register again and tries again in a second: gone"
    assert driver.machine.fetch_error is error
    assert kinds(driver.pass_time(SECOND)) == [m.Fetch]


# -- shutdown


def test_a_shutdown_hands_back_all_jobs_that_have_not_started_and_fetches_no_more(driver: Driver) -> None:
    (run,) = driver.answer(driver.lease(), driver.lease(), driver.lease(SECOND, is_started=False), is_more=True)
    running, ready = jobs_of(run)
    assert running.claim_start()
    announce, end = driver.report(driver.machine.stop_requested)
    assert isinstance(announce, m.AnnounceShutdown)
    assert running in announce.jobs
    assert [job.lease.id for job in jobs_of(end)] == [ready.lease.id, "job-3"]
    assert driver.settle(ready) == []
    assert (driver.report(driver.machine.woken), driver.wakeup()) == ([], None)


def test_jobs_that_arrive_during_a_shutdown_are_handed_back(driver: Driver) -> None:
    driver.report(driver.machine.stop_requested)
    (end,) = driver.answer(driver.lease(), driver.lease(SECOND, is_started=False))
    assert len(jobs_of(end)) == 2


def test_a_shutdown_wants_no_further_fetch_when_jobs_are_left(driver: Driver) -> None:
    (run,) = driver.answer(driver.lease())
    driver.report(driver.machine.woken)
    driver.report(driver.machine.stop_requested)
    driver.settle(*jobs_of(run))
    assert driver.answer(is_more=True) == []
    assert driver.machine.is_settled is True


def test_a_start_that_is_answered_during_a_shutdown_is_handed_back(driver: Driver) -> None:
    driver.answer(driver.lease(SECOND, is_started=False))
    (commit,) = driver.pass_time(SECOND)
    assert kinds(driver.report(driver.machine.stop_requested)) == [m.AnnounceShutdown]
    (end,) = driver.report(driver.machine.starts_answered, jobs_of(commit), [True])
    assert isinstance(end, m.EndLeases)
    assert driver.machine.awaits_leases is False


def test_handlers_that_still_run_after_the_grace_are_interrupted(driver: Driver) -> None:
    (run,) = driver.answer(driver.lease())
    (job,) = jobs_of(run)
    assert job.claim_start()
    driver.report(driver.machine.stop_requested)
    end, stop = driver.report(driver.machine.interrupt_requested)
    assert isinstance(end, m.EndLeases)
    assert (end.jobs, end.kind) == ([job], OutcomeKind.INTERRUPTED)
    assert isinstance(stop, m.StopHandlers)
    assert (stop.jobs, stop.also_batches) == ([job], True)
    assert (job.claim_end(), driver.machine.interrupted) == (False, 1)
