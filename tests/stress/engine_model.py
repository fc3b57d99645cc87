"""A naive engine of plain dicts, without index, lock or transaction. Tests compare real engines with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from mainspring.jobs.engine import MAX_CRASHES, Retention
from mainspring.jobs.events import EventKind
from mainspring.jobs.limits import Limit, family_of
from mainspring.jobs.records import (
    STATUS_AFTER,
    SUSPECT_CRASHES,
    Attempt,
    Cause,
    Conflict,
    ConflictKind,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
    ProgressReport,
)
from mainspring.jobs.recurrence.schedule_records import (
    Fired,
    Firing,
    Occurrence,
    OccurrenceKind,
    Overlap,
    ScheduleRecord,
)
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.testing.conformance.bench import NAME

Job: TypeAlias = dict[str, Any]

NEW = {
    "status": JobStatus.PENDING,
    "token": 0,
    "owner": None,
    "lease": None,
    "starts": 0,
    "failures": 0,
    "timeouts": 0,
    "crashes": 0,
    "interruptions": 0,
    "started": None,
    "finished": None,
    "result": None,
    "error": None,
    "stop_requested": False,
    "replayed_as": None,
    "history": (),
    "progress": None,
    "keep_result_until": None,
}
COPIED = (
    "type",
    "queue",
    "priority",
    "payload",
    "codec",
    "sequence",
    "steps_aside",
    "limits",
    "headers",
    "follow_up",
)
NOT_COPIED = {"unique_key": None, "expires": None, "schedule": None, "occurrence": None}
COUNTERS = {Cause.FAILURE: "failures", Cause.TIMEOUT: "timeouts", Cause.CRASH: "crashes"}
TOLD = {
    OutcomeKind.COMPLETED: EventKind.COMPLETED,
    OutcomeKind.FAILED: EventKind.FAILED,
    OutcomeKind.CANCELED: EventKind.CANCELED,
    OutcomeKind.RETRY: EventKind.RETRIED,
    OutcomeKind.SNOOZED: EventKind.SNOOZED,
    OutcomeKind.INTERRUPTED: EventKind.INTERRUPTED,
}
MOST_RECORDS = 100


class EngineModel:
    """Jobs in the order of submission, limits, queues, schedules, the numbers of live workers, and events.

    Each question is answered by a look at all jobs.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.workers: list[int] = []
        self.told: list[tuple[EventKind, str]] = []
        self.untold: set[str] = set()  # jobs that were started, and whose handlers have not begun
        self._places = 0
        self.limits: dict[str, Limit] = {}
        self.full_at: dict[str, int] = {}
        self.paused: set[str] = set()
        self.schedules: dict[str, ScheduleRecord] = {}
        self.occurrences: dict[str, list[Occurrence]] = {}
        """The occurrences without jobs, the earliest first."""

    # -- events and counts

    def tell(self, kind: EventKind, job_id: str) -> None:
        self.told.append((kind, job_id))

    def tell_start(self, job_id: str) -> None:
        """Write the `started` event, once for each start."""
        if job_id in self.untold:
            self.untold.remove(job_id)
            self.tell(EventKind.STARTED, job_id)

    def counts(self) -> dict[JobStatus, int]:
        counted = [job for job in self.jobs.values() if not _is_replayed_letter(job)]
        statuses = [job["status"] for job in counted]
        return {status: statuses.count(status) for status in JobStatus}

    # -- submitting

    def submit(self, job: NewJob, now: int) -> Conflict | None:
        if job.id in self.jobs:
            return Conflict(job.id, ConflictKind.ID)
        found = self._conflicting(job, now)
        if found is None:
            given = {name: getattr(job, name) for name in job.__struct_fields__ if name != "unique"}
            self.store(given | {"unique_key": job.unique.key if job.unique else None}, now)
            return None
        if job.unique is None or not job.unique.replaces:
            self.tell(EventKind.DEDUPLICATED, found["id"])
            return Conflict(found["id"], ConflictKind.UNIQUE)
        found |= {name: getattr(job, name) for name in ("payload", "codec", "headers", "expires", "limits")}
        self.move(found, job.due)
        return Conflict(found["id"], ConflictKind.REPLACED)

    def _conflicting(self, job: NewJob, now: int) -> Job | None:
        for other in reversed(self.jobs.values()):
            if job.schedule is not None and (other["schedule"], other["occurrence"]) == (
                job.schedule,
                job.occurrence,
            ):
                return other
            if job.unique is None or other["unique_key"] != job.unique.key:
                continue
            if job.unique.replaces and other["starts"] > 0:
                continue
            is_young = job.unique.window is None or now - other["created"] < job.unique.window
            if other["status"] in job.unique.states and is_young:
                return other
        return None

    def store(self, job: Job, now: int) -> None:
        self._places += 1
        self.jobs[job["id"]] = NEW | job | {"created": now, "turn": job["due"], "place": self._places}
        self.tell(EventKind.SUBMITTED, job["id"])

    def move(self, job: Job, due: int) -> None:
        """Change the due time of a job; its lease ends.

        A job that has started keeps its place in its sequence, unless it steps aside.
        """
        job["due"] = due
        if job["starts"] == 0 or job["steps_aside"]:
            job["turn"] = due
        self.take_away(job)
        self.tell(EventKind.RESCHEDULED, job["id"])

    def take_away(self, job: Job) -> None:
        if job["owner"] is not None:
            job |= {"owner": None, "token": job["token"] + 1}

    def alive(self) -> list[Job]:
        return [job for job in self.jobs.values() if job["status"] not in FINAL]

    # -- commands on single jobs, and pruning

    def cancel(self, job_id: str, now: int) -> tuple[bool, JobStatus | None]:
        job = self.jobs.get(job_id)
        if job is None:
            return False, None
        before = job["status"]
        if before is JobStatus.PENDING:
            job |= {"status": JobStatus.CANCELED, "owner": None, "finished": now}
            job["error"] = "canceled before it started"
            self.tell(EventKind.CANCELED, job_id)
        elif before is JobStatus.RUNNING:
            job["stop_requested"] = True
        return before is JobStatus.PENDING, before

    def reopen(self, job_id: str, due: int) -> bool:
        job = self._letter(job_id)
        if job is None or self._unique_holder(job) is not None:
            return False
        job |= {"status": JobStatus.PENDING, "due": due, "turn": due, "finished": None, "error": None}
        job |= {"failures": 0, "timeouts": 0, "crashes": 0, "expires": None}
        self.tell(EventKind.REOPENED, job_id)
        return True

    def replay(self, job_id: str, new_id: str, due: int, now: int) -> bool:
        job = self._letter(job_id)
        if job is None:
            return False
        kept = {name: job[name] for name in COPIED}
        self.store(kept | NOT_COPIED | {"id": new_id, "due": due, "origin": job_id}, now)
        job["replayed_as"] = new_id
        return True

    def _letter(self, job_id: str) -> Job | None:
        job = self.jobs.get(job_id)
        if job is None or job["status"] is not JobStatus.FAILED or job["replayed_as"] is not None:
            return None
        return job

    def _unique_holder(self, job: Job) -> Job | None:
        if job["unique_key"] is None:
            return None
        return next((other for other in self.alive() if other["unique_key"] == job["unique_key"]), None)

    def reschedule(self, job_id: str, due: int) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job["status"] is not JobStatus.PENDING:
            return False
        self.move(job, due)
        return True

    def change_limits(self, job_id: str, limits: tuple[str, ...]) -> bool:
        job = self.jobs.get(job_id)
        if job is None or job["status"] is not JobStatus.PENDING:
            return False
        job["limits"] = limits
        self.take_away(job)
        return True

    def delete(self, job_id: str) -> bool:
        if job_id not in self.jobs or self.jobs[job_id]["status"] not in FINAL:
            return False
        del self.jobs[job_id]
        return True

    def prune(self, retention: Retention, now: int) -> int:
        """Delete all jobs that are older than the retention allows."""
        ages = {
            JobStatus.COMPLETED: retention.completed,
            JobStatus.CANCELED: retention.canceled,
            JobStatus.FAILED: retention.failed,
        }
        over = [
            job["id"]
            for job in self.jobs.values()
            if (age := ages.get(job["status"])) is not None and job["finished"] + age <= now
        ]
        for job_id in over:
            del self.jobs[job_id]
        counted = [
            job["id"] for job in self.jobs.values() if job["status"] in (JobStatus.COMPLETED, JobStatus.CANCELED)
        ]
        beyond = [] if retention.most is None else counted[: max(0, len(counted) - retention.most)]
        for job_id in beyond:
            del self.jobs[job_id]
        for job in self.jobs.values():
            if job["keep_result_until"] is not None and job["keep_result_until"] <= now:
                job["result"] = None
        return len(over) + len(beyond)

    # -- schedules

    def put_schedule(self, record: ScheduleRecord, expected: int | None, now: int) -> bool:
        stored = self.schedules.get(record.name)
        if expected != (stored.revision if stored else None):
            return False
        if stored is None:
            self.schedules[record.name] = replace(record, revision=1, created=now)
            return True
        self.schedules[record.name] = replace(
            record,
            revision=stored.revision + 1,
            created=stored.created,
            is_paused=stored.is_paused,
            last_due=stored.last_due,
        )
        return True

    def pause_schedule(self, name: str, next_due: int | None, *, is_paused: bool) -> bool:
        stored = self.schedules.get(name)
        if stored is None or stored.is_paused is is_paused:
            return False
        due = stored.next_due if is_paused else next_due
        self.schedules[name] = replace(stored, is_paused=is_paused, next_due=due)
        return True

    def remove_schedule(self, name: str) -> bool:
        self.occurrences.pop(name, None)
        return self.schedules.pop(name, None) is not None

    def next_firing(self) -> int | None:
        coming = [record.next_due for record in self.schedules.values() if not record.is_paused]
        return min((due for due in coming if due is not None), default=None)

    def fire(self, firing: Firing, now: int, blamed: str | None) -> Fired:
        """Fire; of several jobs that have not ended, any one may be blamed for a skip."""
        stored = self.schedules.get(firing.schedule)
        if stored is None or stored.is_paused:
            return Fired(False)
        if (stored.revision, stored.next_due) != (firing.revision, firing.expected):
            return Fired(False)
        self.schedules[firing.schedule] = replace(stored, next_due=firing.next_due, last_due=firing.last_due)
        self._note(firing.schedule, *firing.records)
        known = {(job["schedule"], job["occurrence"]) for job in self.jobs.values()}
        new = [job for job in firing.jobs if (job.schedule, job.occurrence) not in known]
        earlier = [job for job in self.alive() if new and job["schedule"] == firing.schedule]
        if earlier and firing.overlap is Overlap.SKIP:
            assert blamed in [job["id"] for job in earlier]
            return self._skip(firing.schedule, new, blamed, now)
        if firing.overlap is Overlap.REPLACE:
            for job in earlier:
                self.cancel(job["id"], now)
        return Fired(True, tuple(job.id for job in new if self.submit(job, now) is None))

    def _skip(self, schedule: str, jobs: list[NewJob], blamed: str | None, now: int) -> Fired:
        note = f"job {blamed} of an earlier occurrence has not ended"
        for job in jobs:
            due = job.occurrence or 0
            self._note(schedule, Occurrence(due, due, 1, OccurrenceKind.SKIPPED, note, now))
        return Fired(True, (), blamed)

    def _note(self, schedule: str, *records: Occurrence) -> None:
        self.occurrences[schedule] = [*self.occurrences.get(schedule, []), *records][-MOST_RECORDS:]
        for _ in records:
            self.tell(EventKind.SKIPPED, schedule)

    # -- limits and queues

    def put_limit(self, family: str, limit: Limit) -> bool:
        is_new = self.limits.get(family) != limit
        self.limits[family] = limit
        return is_new

    def drop_limit(self, family: str) -> bool:
        return self.limits.pop(family, None) is not None

    def pause_queue(self, queue: str, *, is_paused: bool) -> bool:
        if (queue in self.paused) is is_paused:
            return False
        self.paused ^= {queue}
        for job in self.jobs.values():
            if is_paused and job["queue"] == queue and job["status"] is JobStatus.PENDING:
                self.take_away(job)
        return True

    # -- jobs that can be claimed

    def available(self, types: Iterable[str]) -> list[Job]:
        """Return the jobs that could be taken as soon as they are due and there is room."""
        return [
            job
            for job in self.jobs.values()
            if job["status"] is JobStatus.PENDING and job["owner"] is None and job["type"] in types
            if job["queue"] not in self.paused and self.is_first(job)
        ]

    def startable(self, types: Iterable[str], until: int, now: int) -> list[Job]:
        """Return the jobs that may start now."""
        return [job for job in self.available(types) if job["due"] <= until and self.admits(job, now)]

    def is_first(self, job: Job) -> bool:
        """Answer whether no other job of its sequence runs or comes before it."""
        others = [other for other in self.alive() if other["sequence"] == job["sequence"] and other is not job]
        return job["sequence"] is None or not any(
            other["owner"] is not None or (other["turn"], other["place"]) < (job["turn"], job["place"])
            for other in others
        )

    def admits(self, job: Job, now: int) -> bool:
        return all(self._has_room(bucket, now) for bucket in job["limits"])

    def _has_room(self, bucket: str, now: int) -> bool:
        limit = self.limits.get(family_of(bucket))
        if limit is None:
            return True
        if limit.per is not None:
            return self._free_at(bucket, limit) <= now
        running = [job for job in self.jobs.values() if job["status"] is JobStatus.RUNNING]
        return sum(bucket in job["limits"] for job in running) < limit.most

    def _free_at(self, bucket: str, limit: Limit) -> int:
        return self.full_at.get(bucket, 0) - limit.interval * (limit.most - 1)

    def use_up(self, job: Job, now: int) -> None:
        """Take a token from each rate."""
        for bucket in job["limits"]:
            limit = self.limits.get(family_of(bucket))
            if limit is not None and limit.per is not None:
                self.full_at[bucket] = max(now, self.full_at.get(bucket, 0)) + limit.interval

    def looks(self, types: Iterable[str], until: int, now: int) -> list[int]:
        """Return when something happens that wakes no worker."""
        due = [job for job in self.available(types) if job["due"] <= until and job["crashes"] < SUSPECT_CRASHES]
        waiting = [job for job in self.jobs.values() if job["status"] is JobStatus.PENDING and not job["owner"]]
        instants = [self._rate_admits_at(job, now) for job in due] + [job["expires"] for job in waiting]
        return [instant for instant in instants if instant is not None]

    def dues(self, types: Iterable[str], until: int, now: int) -> list[int]:
        """Return when those that are not due may start. A job that waits for the end of another will be woken."""
        available = self.available(types)
        due_groups = [group(job) for job in available if job["due"] <= until and job["limits"]]
        instants = []
        for job in available:
            tokens_at = self._rate_admits_at(job, now)
            is_first_of_group = job["due"] > until and group(job) not in due_groups
            if is_first_of_group and (tokens_at is not None or self.admits(job, now)):
                instants.append(max(job["due"], tokens_at or 0))
        return instants

    def _rate_admits_at(self, job: Job, now: int) -> int | None:
        """Return when a job may start, if it waits for nothing but tokens."""
        full = [bucket for bucket in job["limits"] if not self._has_room(bucket, now)]
        limits = {bucket: self.limits[family_of(bucket)] for bucket in full}
        if not full or any(limit.per is None for limit in limits.values()):
            return None
        return max(self._free_at(bucket, limit) for bucket, limit in limits.items())

    # -- expiry

    def expire(self, now: int) -> None:
        for job in self.jobs.values():
            is_waiting = job["status"] is JobStatus.PENDING and job["owner"] is None
            if is_waiting and job["expires"] is not None and job["expires"] <= now:
                job |= {"status": JobStatus.FAILED, "finished": now}
                job["error"] = "expired: it did not start within its time"
                self.tell(EventKind.FAILED, job["id"])

    # -- starting

    def is_busy(self, worker: int) -> bool:
        return any(job["owner"] == worker for job in self.jobs.values())

    def has_held_jobs(self) -> bool:
        return any(job["owner"] and job["status"] is JobStatus.PENDING for job in self.jobs.values())

    def take(self, lease: Lease, worker: int, now: int) -> None:
        job = self.jobs[lease.id]
        job |= {"owner": worker, "lease": lease, "token": job["token"] + 1}
        if lease.is_started:
            self._start(job, now)

    def _start(self, job: Job, now: int) -> None:
        self.use_up(job, now)
        job |= {"status": JobStatus.RUNNING, "starts": job["starts"] + 1, "started": max(now, job["due"])}
        self.untold.add(job["id"])

    def start(self, worker: int, lease: Lease, now: int) -> bool:
        job = self.leased(worker, lease, JobStatus.PENDING)
        if job is not None:
            self._start(job, now)
        return job is not None

    def leased(self, worker: int, lease: Lease, status: JobStatus) -> Job | None:
        """Return the job of the very lease that was given last, if the worker still has it."""
        job = self.jobs.get(lease.id)
        is_current = (
            job is not None and job["lease"] is lease and (job["owner"], job["status"]) == (worker, status)
        )
        return job if is_current else None

    def report(self, worker: int, report: ProgressReport) -> bool:
        job = self.leased(worker, report.lease, JobStatus.RUNNING)
        if job is not None:
            self.tell_start(job["id"])
            if report.progress is not None:
                job["progress"] = report.progress
                self.tell(EventKind.PROGRESS, job["id"])
        return job is not None

    # -- ending

    def settle(self, worker: int, outcomes: Sequence[Outcome], now: int) -> list[bool]:
        """End leases, and only then submit what follows them: unique keys of those that end together are free."""
        answers = [self._settle(worker, outcome, now) for outcome in outcomes]
        for outcome, is_settled in zip(outcomes, answers, strict=True):
            if is_settled and outcome.follow_up is not None:
                self.submit(outcome.follow_up, now)
        return answers

    def _settle(self, worker: int, outcome: Outcome, now: int) -> bool:
        is_back = outcome.kind is OutcomeKind.HANDED_BACK
        is_held = is_back and not outcome.lease.is_started
        job = self.leased(worker, outcome.lease, JobStatus.PENDING if is_held else JobStatus.RUNNING)
        if job is None:
            return False
        if is_back:
            self.untold.discard(job["id"])
        else:
            self.tell_start(job["id"])
        self._charge(job, outcome, now)
        if is_back and not is_held:
            job["starts"] -= 1
            job["started"] = job["started"] if job["starts"] else None
        if outcome.due is not None:
            job["due"] = outcome.due
            job["turn"] = outcome.due if job["steps_aside"] else job["turn"]
        is_stopped = job["stop_requested"] and STATUS_AFTER[outcome.kind] is JobStatus.PENDING
        self._end(job, STATUS_AFTER[outcome.kind], now)
        if is_stopped:
            self.tell(EventKind.CANCELED, job["id"])
        elif not is_back:
            self.tell(TOLD[outcome.kind], job["id"])
        if outcome.kind is not OutcomeKind.COMPLETED:
            job["error"] = outcome.error or job["error"]
            return True
        job |= {"result": outcome.result, "error": outcome.error, "keep_result_until": outcome.keep_result_until}
        return True

    def _charge(self, job: Job, outcome: Outcome, now: int) -> None:
        cause = Cause.DEPLOY if outcome.kind is OutcomeKind.INTERRUPTED else outcome.cause
        if cause is not None:
            error = outcome.error or "interrupted by a shutdown"
            job["history"] += (Attempt(job["starts"], job["started"], now, cause, error, NAME),)
        if outcome.cause is not None:
            job[COUNTERS[outcome.cause]] += 1
        job["interruptions"] += outcome.kind is OutcomeKind.INTERRUPTED

    def _end(self, job: Job, status: JobStatus, now: int) -> None:
        """Set the final state, or PENDING; a job that was asked to stop is canceled instead."""
        if status is JobStatus.PENDING and job["stop_requested"]:
            status = JobStatus.CANCELED
        job |= {"status": status, "owner": None, "stop_requested": False}
        job["finished"] = now if status in FINAL else None
        if status is JobStatus.PENDING and job["starts"] > 0:
            job["expires"] = None  # it has started in time

    def declare_dead(self, worker: int, died: dict[str, int]) -> tuple[set[str], set[str]]:
        """Take all jobs from a worker; return the ids of the rescued and of the quarantined jobs."""
        self.workers.remove(worker)
        rescued, quarantined = set(), set()
        for job in self.jobs.values():
            if job["owner"] != worker:
                continue
            if job["status"] is JobStatus.PENDING:
                job["owner"] = None
                continue
            self.tell_start(job["id"])
            job["crashes"] += 1
            when = died[job["id"]]
            error = f"its worker {worker} died"
            job["history"] += (Attempt(job["starts"], job["started"], when, "crash", error, NAME),)
            if job["stop_requested"]:
                self._end(job, JobStatus.CANCELED, when)
                self.tell(EventKind.CANCELED, job["id"])
            elif job["crashes"] >= MAX_CRASHES:
                job["error"] = f"quarantined: {job['crashes']} workers died while they ran it"
                self._end(job, JobStatus.FAILED, when)
                quarantined.add(job["id"])
                self.tell(EventKind.FAILED, job["id"])
            else:
                self._end(job, JobStatus.PENDING, when)
                rescued.add(job["id"])
                self.tell(EventKind.RESCUED, job["id"])
        return rescued, quarantined


def _is_replayed_letter(job: Job) -> bool:
    return job["status"] is JobStatus.FAILED and job["replayed_as"] is not None


def group(job: Job) -> tuple[object, ...]:
    """Name what is equal for jobs that wait for the same room."""
    return tuple(job[name] for name in ("type", "queue", "priority", "limits"))
