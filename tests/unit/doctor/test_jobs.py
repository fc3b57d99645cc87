"""Checks of workers, handlers and jobs."""

from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.doctor import jobs
from mainspring.doctor.findings import Severity
from mainspring.doctor.snapshot import READ, Snapshot
from mainspring.jobs.backlog import Backlog
from mainspring.jobs.blocked_jobs import BlockedGroup
from mainspring.jobs.engine import STALE
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import JobRecord, NewJob, RemoteTerms, WorkerInfo, WorkerRecord
from mainspring.jobs.statistics import UpcomingSlot
from mainspring.jobs.status import JobStatus
from mainspring.jobs.store_statistics import MAX_COUNTED
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime
from mainspring.jobs.transitions import submitted
from tests.unit.doctor.finding_assertions import assert_finding, findings_of, is_all_ok

NOW = 1_800_000_000 * MICROSECONDS
MINUTE = 60 * MICROSECONDS


def worker(number: int = 1, *types: str, silent: int = 0, is_gone: bool = False) -> WorkerRecord:
    return WorkerRecord(number, WorkerInfo("host", 77, types or ("ping",)), NOW - silent, is_gone)


def waiting(type_: str = "ping", *, queue: str = "default", count: int = 3, since: int = MICROSECONDS) -> Backlog:
    return Backlog(queue, type_, count, NOW - since)


def letter(job_id: str, error: str = "RuntimeError: no") -> JobRecord:
    job = submitted(JobRecord, NewJob(job_id, "ping", "default", 1, NOW, b"{}", "json"), NOW)
    return replace(job, status=JobStatus.FAILED, error=error, finished=NOW - 2 * MINUTE)


def snapshot(**facts: Any) -> Snapshot:
    return Snapshot(now=NOW, **({"workers": [worker()], "counts": {}} | facts))


# -- workers


def test_workers_that_live_are_named() -> None:
    found = jobs.check_workers(snapshot(workers=[worker(1), worker(2)], backlog=[waiting()]))
    (finding,) = findings_of(found)
    assert finding.what == "2 workers: 1 (host, process 77), 2 (host, process 77)"
    assert finding.severity is Severity.OK


def test_fewer_workers_than_wanted_are_a_warning() -> None:
    few = jobs.check_workers(snapshot(workers=[worker(1), worker(2)]), 3)
    assert_finding(few, Severity.WARNING, "2 of 3 wanted workers run: 1 (host, process 77), 2 (host, process 77)")
    lost = list(jobs.check_workers(snapshot(workers=[worker(1), worker(2, is_gone=True)]), 2))
    assert [finding.severity for finding in lost] == [Severity.INFO, Severity.WARNING]
    none = jobs.check_workers(snapshot(workers=[]), 1)
    assert_finding(none, Severity.WARNING, "0 of 1 wanted workers run: none")
    assert is_all_ok(jobs.check_workers(snapshot(workers=[worker(1), worker(2)]), 2))


def test_wanted_workers_that_cannot_be_counted_are_a_warning() -> None:
    assert_finding([jobs.warn_of_uncounted(3)], Severity.WARNING, "it is not known whether 3 workers run")


def test_due_jobs_without_any_worker_are_an_error() -> None:
    found = jobs.check_workers(snapshot(workers=[], backlog=[waiting(since=5 * MINUTE), waiting("pong")]))
    assert_finding(found, Severity.ERROR, "no worker runs, and 6 jobs are due, the oldest for 5 min")


def test_jobs_that_lost_their_worker_wait_for_another() -> None:
    running = {"counts": {JobStatus.RUNNING: 2}}
    assert_finding(
        jobs.check_workers(snapshot(workers=[], **running)), Severity.ERROR, "2 jobs have lost their workers"
    )
    both = jobs.check_workers(snapshot(workers=[], backlog=[waiting(count=1)], **running))
    assert_finding(both, Severity.ERROR, "1 job is due, the oldest for 1 s and 2 jobs have lost their workers")
    assert is_all_ok(jobs.check_workers(snapshot(**running)))


def test_no_worker_and_nothing_to_do_is_worth_a_note() -> None:
    assert_finding(jobs.check_workers(snapshot(workers=[])), Severity.INFO, "no worker runs")
    paused = snapshot(workers=[], backlog=[waiting(queue="mail")], paused=frozenset({"mail"}))
    assert_finding(jobs.check_workers(paused), Severity.INFO, "no worker runs")


@pytest.mark.parametrize(
    ("lost", "word"),
    [
        (worker(7, silent=STALE + 15 * MICROSECONDS), "7 (host, process 77), no heartbeat for 60 s"),
        (worker(7, silent=5 * MICROSECONDS, is_gone=True), "no heartbeat for 5 s"),
        (worker(7, silent=NOW, is_gone=True), "stopped or died without handing its jobs back"),
    ],
)
def test_a_lost_worker_is_a_warning_unless_others_are_there(lost: WorkerRecord, word: str) -> None:
    assert_finding(jobs.check_workers(snapshot(workers=[lost])), Severity.WARNING, word)
    assert_finding(jobs.check_workers(snapshot(workers=[lost, worker(8)])), Severity.INFO, word)


# -- handlers


def test_jobs_that_no_worker_knows_are_an_error() -> None:
    found = jobs.check_handlers(snapshot(backlog=[waiting("old.name"), waiting("ping")]))
    assert_finding(found, Severity.ERROR, "no worker has a handler for old.name, and 3 jobs wait for it")


def test_what_a_dead_worker_knew_does_not_count() -> None:
    crew = [worker(1, "pong", is_gone=True), worker(2, "ping")]
    assert_finding(jobs.check_handlers(snapshot(workers=crew, backlog=[waiting("pong")])), Severity.ERROR, "pong")


def test_handlers_that_no_worker_knows_are_a_warning() -> None:
    found = jobs.check_handlers(snapshot(handlers=frozenset({"ping", "new"})))
    assert_finding(found, Severity.WARNING, "no worker has the handler new of this application")


def test_remote_jobs_without_a_remote_worker_are_an_error_and_no_python_worker_is_asked_for() -> None:
    facts: dict[str, Any] = {"handlers": frozenset({"ping", "resize"}), "remote": frozenset({"resize"})}
    (finding,) = findings_of(jobs.check_handlers(snapshot(**facts, backlog=[waiting("resize")])))
    assert finding.severity is Severity.ERROR
    assert finding.what == "no remote worker serves resize, and 3 jobs wait for it"
    (idle,) = findings_of(jobs.check_handlers(snapshot(**facts)))
    assert (idle.severity, idle.what) == (Severity.INFO, "no remote worker serves resize")
    terms = RemoteTerms("token 1", MICROSECONDS)
    for silent, is_served in ((0, True), (2 * MICROSECONDS, False)):
        remote = WorkerRecord(2, WorkerInfo("node", 0, ("resize",), remote=terms), NOW - silent, is_gone=False)
        found = findings_of(jobs.check_handlers(snapshot(**facts, workers=[worker(), remote])))
        assert (found[0].severity is Severity.OK) is is_served


def test_jobs_that_only_the_application_does_not_know_are_a_warning() -> None:
    crew = [worker(1, "ping", "theirs")]
    found = jobs.check_handlers(snapshot(workers=crew, backlog=[waiting("theirs")], handlers=frozenset({"ping"})))
    assert_finding(found, Severity.WARNING, "this application has no handler theirs")
    alone = jobs.check_handlers(snapshot(workers=[], backlog=[waiting("theirs")], handlers=frozenset({"ping"})))
    assert_finding(alone, Severity.WARNING, "theirs")


def test_jobs_that_are_not_due_yet_need_a_handler_too() -> None:
    later = {"pending": frozenset({"ping", "old.name"})}
    found = jobs.check_handlers(snapshot(handlers=frozenset({"ping"}), **later))
    assert_finding(found, Severity.WARNING, "no handler old.name, and jobs are stored for it")
    assert is_all_ok(jobs.check_handlers(snapshot(**later)))


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"backlog": [waiting()], "handlers": frozenset({"ping"})},
        {"workers": [], "backlog": [waiting()]},
        {"backlog": [waiting("old.name", queue="mail")], "paused": frozenset({"mail"})},
    ],
)
def test_handlers_that_are_all_known_are_in_order(facts: dict[str, Any]) -> None:
    assert is_all_ok(jobs.check_handlers(snapshot(**facts)))


# -- queues


def serving(*queues: str, types: tuple[str, ...] = ("ping",)) -> WorkerRecord:
    return WorkerRecord(1, WorkerInfo("host", 77, types, queues), NOW, is_gone=False)


def test_due_jobs_in_a_queue_that_no_worker_serves_are_an_error() -> None:
    facts = snapshot(workers=[serving("ordes", "mail")], backlog=[waiting(queue="orders", since=5 * MINUTE)])
    found = findings_of(jobs.check_queues(facts))
    assert_finding(found, Severity.ERROR, "no worker serves queue orders, and 3 jobs wait in it")
    assert found[0].reason == "Those jobs never start. Workers serve mail, ordes. Is ordes a typing error?"
    assert found[0].commands == (("run", "--queues", "orders"),)
    assert is_all_ok(jobs.check_lateness(facts))  # more threads would not help


def test_a_queue_is_served_by_workers_that_have_the_handler() -> None:
    crew = [serving("mail"), serving("orders", types=("other",))]
    found = jobs.check_queues(snapshot(workers=crew, backlog=[waiting(queue="orders")]))
    assert_finding(found, Severity.ERROR, "no worker that has the handler serves queue orders")


def test_a_queue_of_a_handler_that_no_worker_serves_is_a_warning() -> None:
    found = jobs.check_queues(snapshot(workers=[serving("mail")], handler_queues=frozenset({"mail", "orders"})))
    assert_finding(
        found, Severity.WARNING, "no worker serves queue orders, which handlers of this application use"
    )


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"workers": [], "backlog": [waiting(queue="orders")]},
        {"workers": [serving("orders")], "backlog": [waiting(queue="orders")]},
        {"workers": [serving("mail")], "backlog": [waiting("unknown", queue="orders")]},
        {"workers": [serving("mail"), worker(2)], "handler_queues": frozenset({"orders"})},
    ],
)
def test_queues_that_are_all_served_are_in_order(facts: dict[str, Any]) -> None:
    assert is_all_ok(jobs.check_queues(snapshot(**facts)))


# -- waiting


def test_jobs_that_wait_for_workers_that_know_them_are_late_after_a_minute() -> None:
    late = [
        waiting(since=3 * MINUTE),
        waiting(since=2 * MINUTE, queue="mail"),
        waiting("unknown", since=9 * MINUTE),
    ]
    assert_finding(
        jobs.check_lateness(snapshot(backlog=late)), Severity.WARNING, "6 jobs", "3 min: ping in queue default"
    )
    assert is_all_ok(jobs.check_lateness(snapshot(backlog=[waiting(since=MINUTE), late[2]])))


def test_a_pause_may_have_been_forgotten() -> None:
    found = jobs.check_paused(
        snapshot(backlog=[waiting(queue="mail", since=2 * MINUTE), waiting()], paused=frozenset({"mail"}))
    )
    finding = assert_finding(
        found, Severity.WARNING, "queue mail is paused, and 3 jobs wait in it, the oldest for 2 min"
    )
    assert finding.commands == (("queues", "resume", "mail"),)
    assert_finding(jobs.check_paused(snapshot(paused=frozenset({"mail"}))), Severity.INFO, "nothing is due")
    assert is_all_ok(jobs.check_paused(snapshot(backlog=[waiting()])))


# -- dead letters


def test_a_queue_that_is_nearly_as_deep_as_its_quota_is_a_warning() -> None:
    depths = {"mail": (79, 100), "orders": (80, 100), "full": (7, 5)}
    full, orders = findings_of(jobs.check_quotas(snapshot(depths=depths)))
    assert full.what == "queue full has 7 pending jobs, and its quota allows 5"
    assert orders.what == "queue orders has 80 pending jobs, and its quota allows 100"
    assert {full.severity, orders.severity} == {Severity.WARNING}


def test_queues_below_their_quotas_are_in_order() -> None:
    assert is_all_ok(jobs.check_quotas(snapshot(depths={"mail": (79, 100)})))
    assert is_all_ok(jobs.check_quotas(snapshot()))


def test_dead_letters_are_a_note_and_quarantine_is_a_warning() -> None:
    assert is_all_ok(jobs.check_dead_letters(snapshot()))
    found = jobs.check_dead_letters(snapshot(letters=[letter("a"), letter("b")]))
    assert_finding(found, Severity.INFO, "2 dead letters, the newest from 2 min ago")
    killed = letter("killer", "quarantined: its worker died 3 times")
    finding = assert_finding(
        jobs.check_dead_letters(snapshot(letters=[killed])), Severity.WARNING, "quarantine", "killer"
    )
    assert finding.commands == (("dlq", "show", "killer"), ("jobs", "retry", "killer"))


def test_a_job_in_quarantine_is_not_the_newest_of_the_other_dead_letters() -> None:
    killed = replace(letter("killer", "quarantined: its worker died 3 times"), finished=NOW)
    _, note = findings_of(jobs.check_dead_letters(snapshot(letters=[letter("a"), killed])))
    assert note.what == "1 dead letter, the newest from 2 min ago"


def test_letters_that_were_not_all_read_are_more_than_counted() -> None:
    many = [letter("a")] * READ
    finding = assert_finding(jobs.check_dead_letters(snapshot(letters=many)), Severity.INFO)
    assert finding.what == "1,000 dead letters or more"  # the newest may be one that was not read
    assert_finding(jobs.check_dead_letters(snapshot(counts=None)), Severity.INFO, "not counted")


# -- jobs behind others


def behind(**changes: Any) -> BlockedGroup:
    blocked = BlockedGroup("customer=7", None, 29, "late-1", NOW - 5 * MINUTE, ("head",))
    return replace(blocked, **changes)


def test_jobs_behind_one_of_their_sequence_are_late() -> None:
    finding = assert_finding(
        jobs.check_lateness(snapshot(blocked=[behind()])),
        Severity.WARNING,
        "29 due jobs wait, the oldest (late-1) for 5 min, in sequence 'customer=7' behind job head",
    )
    assert finding.commands == (("explain", "head"), ("jobs", "cancel", "head"))


def test_jobs_that_wait_for_a_limit_are_late() -> None:
    blocked = behind(sequence=None, bucket=bucket_of("mail", 'tenant="a"'), by=("x", "y"))
    finding = assert_finding(
        jobs.check_lateness(snapshot(blocked=[blocked])), Severity.WARNING, 'mail, tenant="a"', "used up by x, y"
    )
    assert finding.commands == (("explain", "x", "y"), ("jobs", "cancel", "x"))


def test_jobs_that_wait_a_short_time_behind_others_are_not_late() -> None:
    (finding,) = jobs.check_lateness(snapshot(blocked=[behind(since=NOW - MINUTE)]))
    assert finding.severity is Severity.OK


def test_of_many_sequences_the_first_are_named_and_the_rest_is_counted() -> None:
    findings = findings_of(jobs.check_lateness(snapshot(blocked=[behind(by=(f"head-{n}",)) for n in range(12)])))
    assert len(findings) == 6
    assert findings[-1].what == "203 due jobs wait behind 7 other sequences or limits"


def test_jobs_behind_others_that_were_not_counted_are_not_called_punctual() -> None:
    (finding,) = jobs.check_lateness(snapshot(counts=None))
    assert finding.severity is Severity.INFO
    assert finding.commands == (("doctor", "--thorough"),)


# -- slots


def slot(jobs: int, *, average: float = 0.5, at_once: int = 1) -> UpcomingSlot:
    at = to_datetime(NOW + 600 * MICROSECONDS)
    return UpcomingSlot(queue="mail", type="digest", at=at, jobs=jobs, at_once=at_once, average=average)


def test_thousands_of_jobs_at_the_same_instant_are_a_warning() -> None:
    found = jobs.check_slots(snapshot(fullest_slot=slot(4_321, at_once=4_000)))
    finding = assert_finding(
        found, Severity.WARNING, "4,321 jobs of digest in queue mail", "within the same 268 ms", "4,000 of them"
    )
    assert "2027-01-15 08:10:00 UTC" in finding.what
    assert "jitter" in finding.remedy
    assert "batch" in finding.remedy


def test_a_count_that_stopped_says_so() -> None:
    found = jobs.check_slots(snapshot(fullest_slot=slot(MAX_COUNTED)))
    assert_finding(found, Severity.WARNING, "10,000 or more jobs")


def test_a_slot_that_has_its_share_is_in_order() -> None:
    for fine in (slot(999), slot(1_400, average=1_340), slot(1)):
        assert is_all_ok(jobs.check_slots(snapshot(fullest_slot=fine)))
    assert is_all_ok(jobs.check_slots(snapshot(fullest_slot=None)))
    assert is_all_ok(jobs.check_slots(snapshot(fullest_slot=None, counts=None)))
