"""Signs jobs, schedules and dead-letter handlers, and verifies jobs before a worker runs them.

The signature of a job is a header of the job, which every engine stores and gives to workers with the lease. It
covers the fields that never change after the submit. So a retry or a reschedule needs no new signature, unless the
job would be due after the end of its signature.

Who signs which jobs
- a submit, a replay, an edit and a trigger: the process that makes the call
- a follow-up job: the worker that ran the job before it. It has verified that job, whose signature covers the plan
  of the follow-up job. The result of the handler is an argument, so that no earlier signature can cover the job.
- the job of a dead-letter handler: the worker that gives the job up, if the stored handler is signed
- the job of an occurrence has no signature of its own. It refers to that of its schedule, and is verified against
  it: the occurrence must be one of the signed rule, must not be in the future, and determines the id of the job.

Call `JobSigner.problem_of` before a job is run, or given to another program to run: it makes all checks. Lease the
jobs with `JobSigner.take`, which also finds out whether their signatures were used before by jobs that have ended.
`JobSigner.verify` makes most of the checks for all jobs of a fetch at once, in advance.
"""

from __future__ import annotations

import binascii
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from mainspring.errors import NoSigningKey, SignatureInvalid
from mainspring.jobs.commands import Reopen, Reschedule
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler
from mainspring.jobs.engine import Demand, Engine, Taken
from mainspring.jobs.job_policies import RETRY, SIGNATURE, TIMEOUT
from mainspring.jobs.records import SIGNATURE_INVALID, FollowUp, Lease, NewJob, Outcome, OutcomeKind
from mainspring.jobs.recurrence.planning import first_due
from mainspring.jobs.recurrence.rules import UNREADABLE, decode_rule
from mainspring.jobs.recurrence.schedule_records import Firing, ScheduleRecord
from mainspring.jobs.spent_envelopes import envelope_id
from mainspring.jobs.timestamps import LAST_INSTANT, MICROSECONDS, to_datetime
from mainspring.security.keys import HMAC, KeyRing, Verify
from mainspring.security.signatures import (
    JOB,
    LETTER_HANDLER,
    OCCURRENCE,
    REPLACING,
    SCHEDULE,
    VERSION,
    Stamp,
    begin,
    complete,
    find_problem,
    read,
    sign,
)

EARLY = 60 * MICROSECONDS
"""How far in the future the occurrence of a scheduled job may be, in microseconds: clocks of machines differ."""
SHORT = 4_096
"""The most bytes of arguments of a job that `JobSigner.verify` verifies."""
_JOB, _REFERENCE = f"{VERSION}{JOB}", f"{VERSION}{OCCURRENCE}."
_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger("mainspring.signing")


DueCommand = TypeVar("DueCommand", Reschedule, Reopen)


class _ScheduledFields(Protocol):
    """The fields that a schedule and its jobs have in common."""

    @property
    def type(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def codec(self) -> str: ...
    @property
    def follow_up(self) -> FollowUp | None: ...


class _SignedJob(_ScheduledFields, Protocol):
    """The signed fields of a job: of a new job, a lease or a stored job."""

    @property
    def id(self) -> str: ...
    @property
    def sequence(self) -> str | None: ...
    @property
    def headers(self) -> dict[str, str] | None: ...


class _Reference(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a schedule that its signature covers, and that its jobs do not have themselves.

    Each job of a signed schedule carries this as its signature header. `occurrence` is the time of the job's
    occurrence; `signature` is that of the schedule.
    """

    name: str
    occurrence: int
    priority: int
    rule: str
    misfire: str
    catch_up: int
    overlap: str
    jitter: int
    start: int | None
    end: int | None
    expires: int | None
    limits: tuple[str, ...]
    steps_aside: bool
    signature: str


_references = msgspec.msgpack.Decoder(_Reference)


class JobSigner:
    """Signs and verifies jobs, schedules and dead-letter handlers with a key ring.

    `now` returns the time of the engine, in microseconds since 1970.
    """

    def __init__(self, ring: KeyRing, now: Callable[[], int]) -> None:
        self.ring = ring
        self._now = now
        self._verifiers = {
            f"{_JOB}.{key}": ring.verifier(key) for key in ring.ids if ring.algorithm_of(key) == HMAC
        }

    @property
    def can_sign(self) -> bool:
        """Whether the key ring has a key to sign with; other rings can only verify."""
        return self.ring.sign_with is not None

    # -- jobs

    def sign(self, job: NewJob) -> NewJob:
        """Return a copy of a new job with a signature in its headers; raise `NoSigningKey` if the ring cannot
        sign.
        """
        if self.ring.sign_with is None:
            raise NoSigningKey(what=f"a job of {job.type!r}")
        replaces = job.unique is not None and job.unique.replaces
        return replace(job, headers=self._headers(job, job.due, form=REPLACING if replaces else JOB))

    def sign_all(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Return the new jobs of a bulk submit with signatures; raise `NoSigningKey` if the ring cannot sign.

        Jobs with the same due time get signatures of the same instant, which begin with the same text. Such
        signatures take less time to make and to verify.
        """
        ring, now = self.ring, self._now()
        signed: list[NewJob] = []
        due: int | None = None
        prefix = ""
        for job in jobs:
            if ring.sign_with is None or (job.unique is not None and job.unique.replaces):
                signed.append(self.sign(job))
                continue
            if job.due != due:
                due, prefix = job.due, begin(ring, JOB, signed=now, until=self._until(now, job.due))
            text = complete(ring, prefix, _fields(job, job.id))
            signed.append(
                replace(job, headers={**job.headers, SIGNATURE: text} if job.headers else {SIGNATURE: text})
            )
        return signed

    def _until(self, now: int, due: int) -> int:
        return min(LAST_INSTANT, max(now, due) + self.ring.valid_for)

    def _headers(self, job: _SignedJob, due: int, *, form: str = JOB, job_id: str | None = None) -> dict[str, str]:
        """Return the headers of a job with a new signature, which is valid for the ring's `valid_for` after `due`
        or now.
        """
        now = self._now()
        until = self._until(now, due)
        signed_id = job.id if job_id is None else job_id
        alias = signed_id if form == REPLACING else None
        text = sign(self.ring, form, _fields(job, signed_id), signed=now, until=until, alias=alias)
        return {**(job.headers or {}), SIGNATURE: text}

    def take(self, engine: Engine, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        """Lease jobs to a worker, as `Engine.take` does, and set `Lease.spent` of jobs whose signature was used
        before, by a job that has ended or was deleted.

        Call `problem_of` with each lease before its job runs. If `Engine.spent` fails, the jobs are handed back to
        the engine, and its error is raised.
        """
        taken = engine.take(worker, demands, lead=lead, start_lead=start_lead)
        if not taken.leases or not taken.may_be_spent:
            return taken
        try:
            spent = engine.spent([envelope_id(lease.id, lease.headers) for lease in taken.leases])
        except Exception:
            engine.settle(worker, [Outcome(lease, OutcomeKind.HANDED_BACK) for lease in taken.leases])
            raise
        if not spent:
            return taken
        leases = [replace(lease, spent=spent.get(envelope_id(lease.id, lease.headers))) for lease in taken.leases]
        return replace(taken, leases=leases)

    def problem_of(self, lease: Lease) -> str | None:
        """Return what is wrong with the signature of a leased job, which then must not run; None if it may run.

        An unsigned job may run only if the ring accepts unsigned jobs. The arguments are not decoded.
        """
        return None if lease.verified_until >= self._now() else self._find_problem(lease)

    def verify(self, leases: Iterable[Lease]) -> None:
        """Verify leases that `take` has returned, and set `verified_until` of those that are right.

        This method makes the steps of `_find_problem` in one loop, which takes half of the time. It leaves out
        jobs of schedules, jobs that replace others, and jobs that would take longer: those with ed25519 signatures
        or with long arguments. `problem_of` examines these later, on the threads of the executors. The beginning
        of a signature, which the jobs of a bulk submit share, is not read again if the job before had the same
        one.
        """
        now, encode = self._now(), _encode
        prefix: str | None = None
        verify: Verify
        until = 0
        for lease in leases:
            headers = lease.headers
            if headers is None or lease.spent is not None or len(lease.payload) > SHORT:
                continue
            try:
                start, _, signature = headers[SIGNATURE].rpartition(".")
                if start != prefix:
                    form_and_key, signed, seconds = start.rsplit(".", 2)
                    verify = self._verifiers[form_and_key]
                    until = int(signed, 16) + int(seconds, 16) * MICROSECONDS
                    prefix = start
                if len(headers) == 1 and lease.follow_up is None:  # as `_fields` would return
                    kind, queue, payload, codec = lease.type, lease.queue, lease.payload, lease.codec
                    fields = (start, lease.id, kind, queue, payload, codec, lease.sequence, None, None)
                else:
                    fields = (start, *_fields(lease, lease.id))
                # the prefix is signed, so that its numbers can be trusted if the signature is right
                if verify(encode(fields), signature) and until >= now:
                    force_setattr(lease, "verified_until", until)
            except (KeyError, ValueError, TypeError, OverflowError, msgspec.MsgspecError):
                continue  # it is no right signature of a job

    def _find_problem(self, lease: Lease) -> str | None:
        problem, stamp = self._examine(lease)
        if problem is None and stamp is not None:
            now = self._now()
            if stamp.is_expired(now):
                return f"its signature was valid until {_show(stamp.until)}"
            if lease.spent is not None and stamp.signed <= lease.spent:
                return "its signature was used before, by a job that has ended"
        return problem

    def _examine(self, job: _SignedJob) -> tuple[str | None, Stamp | None]:
        """Return what is wrong with the signature of a job, or None; and the parts of the signature, if it is
        readable.

        The end of its validity is not checked. A job without a signature is right only if the ring accepts
        unsigned jobs.
        """
        text = None if job.headers is None else job.headers.get(SIGNATURE)
        if text is None:
            return None if self.ring.accept_unsigned else "it has no signature", None
        if text.startswith(_REFERENCE):
            return self._examine_occurrence(job, text)
        stamp = read(text)
        if stamp is None or stamp.form not in (JOB, REPLACING):
            return "its signature cannot be read", None
        return find_problem(self.ring, stamp, _fields(job, stamp.alias or job.id)), stamp

    def check(self, job: _SignedJob, action: str) -> None:
        """Raise `SignatureInvalid` if a stored job has no signature, or one that does not match its fields.

        The expiry of the signature is not checked, and a ring may accept unsigned jobs. Call it before the job is
        signed anew. `action` is the verb for the error, such as "replay".
        """
        problem, _ = self._examine(job)
        if problem is not None:
            raise SignatureInvalid(
                what=f"cannot {action} job {job.id!r}",
                problem=problem,
                remedy="submit another job, if you know that this one is wanted",
            )

    def change_of(self, job: _SignedJob) -> str | None:
        """Return why the signature of a running job does not match its fields; None if it does. Expiry is not
        checked.

        Call it with a job that was verified before its start and is now read from the store again, before its
        outcome is made or signed.
        """
        return self._examine(job)[0]

    def is_right(self, job: _SignedJob) -> bool:
        """Return whether the signature of a stored job matches its fields.

        The expiry of the signature is not checked. For an unsigned job, return whether the ring accepts unsigned
        jobs.
        """
        return self._examine(job)[0] is None

    def headers_for(
        self,
        job: _SignedJob,
        due: int,
        action: str,
        *,
        new_id: str | None = None,
        payload: bytes | None = None,
        codec: str | None = None,
    ) -> dict[str, str]:
        """Return the headers of a stored job with a new signature, perhaps for another id or other arguments.

        Nothing is stored. Raises `SignatureInvalid` if the present signature does not match, and `NoSigningKey` if
        the ring cannot sign. `action` is the verb for the error, such as "edit".
        """
        self.check(job, action)
        if not self.can_sign:
            raise NoSigningKey(what=f"job {job.id!r}")
        changed = NewJob(
            new_id or job.id,
            job.type,
            job.queue,
            0,
            due,
            job.payload if payload is None else payload,
            job.codec if codec is None else codec,
            sequence=job.sequence,
            headers=job.headers,
            follow_up=job.follow_up,
        )
        return self._headers(changed, due)

    def renew(self, command: DueCommand, job: _SignedJob) -> DueCommand:
        """Return a command that changes the due time of a job, with a new signature if the job needs one.

        It needs one if its present signature ends before the new due time. In this case, raises `SignatureInvalid`
        if the present signature does not match, and `NoSigningKey` if the ring cannot sign.
        """
        _, stamp = self._examine(job)
        if stamp is None or not stamp.is_expired(command.due):
            return command
        return replace(command, headers=self.headers_for(job, command.due, "change the due time of"))

    def finish(self, outcome: Outcome) -> None:
        """Sign the follow-up job of an outcome; sign the job anew if its signature ends before its next attempt.

        Without a key to sign with, the follow-up job stays unsigned. If the job itself must be signed anew, the
        outcome is then changed to FAILED.
        """
        if outcome.follow_up is not None and self.can_sign:
            outcome.follow_up = self.sign(outcome.follow_up)
        if outcome.due is None:
            return
        _, stamp = self._examine(outcome.lease)
        if stamp is None or not stamp.is_expired(outcome.due):
            return
        if self.can_sign:
            outcome.headers = self._headers(outcome.lease, outcome.due)
            return
        error = (
            f"{SIGNATURE_INVALID}: the next attempt would be at {_show(outcome.due)}, its signature is valid "
            f"until {_show(stamp.until)}, and this worker has no key to sign it anew"
        )
        outcome.error = f"{error}\n{outcome.error}" if outcome.error else error
        outcome.kind, outcome.due = OutcomeKind.FAILED, None

    # -- schedules

    def sign_schedule(self, record: ScheduleRecord) -> ScheduleRecord:
        """Return a copy of a schedule with a new signature; raise `NoSigningKey` if the ring cannot sign."""
        if not self.can_sign:
            raise NoSigningKey(what=f"schedule {record.name!r}")
        text = sign(self.ring, SCHEDULE, _schedule_fields(record), signed=self._now())
        return replace(record, signature=text)

    def schedule_problem(self, record: ScheduleRecord) -> str | None:
        """Return what is wrong with the signature of a schedule; None if it is right, or if unsigned ones are
        accepted.
        """
        if record.signature is None:
            return None if self.ring.accept_unsigned else "it has no signature"
        stamp = read(record.signature)
        if stamp is None or stamp.form != SCHEDULE:
            return "its signature cannot be read"
        return find_problem(self.ring, stamp, _schedule_fields(record))

    def must_sign_schedule(self, record: ScheduleRecord) -> bool:
        """Return whether a stored schedule should be signed and stored again.

        That is so if it has no signature or a wrong one, or if this process signs with another key.
        """
        if self.schedule_problem(record) is not None or record.signature is None:
            return True
        return self.can_sign and key_of(record.signature) != self.ring.sign_with

    def refer_to_schedule(self, record: ScheduleRecord, firing: Firing) -> Firing:
        """Return a firing whose jobs refer to the signature of their schedule, so that workers can verify them.

        Each job of an occurrence gets the id of `occurrence_id`. If the schedule is unsigned or its signature is
        wrong, the firing is returned as it is. If workers will refuse its jobs, an error is logged, too.
        """
        problem = self.schedule_problem(record)
        if problem is not None:
            logger.error("jobs of schedule %r become dead letters: %s; store it again", record.name, problem)
        if problem is not None or record.signature is None or not firing.jobs:
            return firing
        return replace(firing, jobs=tuple(_refer(record, job) for job in firing.jobs))

    def sign_trigger(self, record: ScheduleRecord, firing: Firing) -> Firing:
        """Return the firing of a triggered schedule with signed jobs.

        Raises `SignatureInvalid` if the signature of the schedule is not right, and `NoSigningKey` if the ring
        cannot sign.
        """
        problem = self.schedule_problem(record)
        if problem is not None:
            raise SignatureInvalid(
                what=f"cannot trigger schedule {record.name!r}", problem=problem, remedy="store the schedule again"
            )
        return replace(firing, jobs=tuple(map(self.sign, firing.jobs)))

    def _examine_occurrence(self, job: _SignedJob, text: str) -> tuple[str | None, Stamp | None]:
        unreadable = "its signature cannot be read"
        found = _read_reference(text)
        stamp = None if found is None else read(found.signature)
        if found is None or stamp is None or stamp.form != SCHEDULE:
            return unreadable, None
        problem = find_problem(self.ring, stamp, _fields_of_reference(found, job))
        if problem is not None:
            return f"it refers to schedule {found.name!r}, but {problem}", None
        if job.id != occurrence_id(found.name, found.occurrence):
            return f"its id is not that of an occurrence of schedule {found.name!r}", None
        if job.sequence not in (None, f"schedule {found.name}") or _has_policies(job.headers):
            return f"it has a sequence or a policy that schedule {found.name!r} does not give its jobs", None
        if not _is_occurrence(found):
            return f"{_show(found.occurrence)} is no occurrence of schedule {found.name!r}", None
        if found.occurrence > self._now() + EARLY:
            return f"the occurrence {_show(found.occurrence)} of schedule {found.name!r} has not come", None
        until = min(LAST_INSTANT, found.occurrence + found.jitter + self.ring.valid_for)
        return None, Stamp(OCCURRENCE, stamp.key, found.occurrence, until, stamp.prefix, stamp.signature)

    # -- dead-letter handlers

    def sign_handler(self, handler: DeadLetterHandler) -> DeadLetterHandler:
        """Return a copy of a dead-letter handler with a new signature; raise `NoSigningKey` if the ring cannot
        sign.
        """
        if not self.can_sign:
            raise NoSigningKey(what=f"the dead-letter handler {handler.type!r}")
        text = sign(self.ring, LETTER_HANDLER, _handler_fields(handler), signed=self._now())
        return replace(handler, signature=text)

    def is_handler_right(self, handler: DeadLetterHandler) -> bool:
        """Return whether a stored dead-letter handler has a signature that matches it."""
        stamp = None if handler.signature is None else read(handler.signature)
        if stamp is None or stamp.form != LETTER_HANDLER:
            return False
        return find_problem(self.ring, stamp, _handler_fields(handler)) is None

    def must_sign_handler(self, handler: DeadLetterHandler) -> bool:
        """Return whether a stored dead-letter handler should be signed and stored again.

        That is so if it has no signature or a wrong one, or if this process signs with another key.
        """
        is_right = self.is_handler_right(handler)
        return not is_right or (self.can_sign and key_of(handler.signature or "") != self.ring.sign_with)

    def sign_letter(self, handler: DeadLetterHandler, job: NewJob) -> NewJob:
        """Return the job of a dead-letter handler, signed if the handler's signature is right and the ring can
        sign.

        An engine calls it in the transaction in which another job becomes a dead letter.
        """
        return self.sign(job) if self.can_sign and self.is_handler_right(handler) else job


def key_of(text: str) -> str | None:
    """Return the id of the key that made a signature; None if the text is no readable signature.

    For the job of a schedule, this is the key that signed the schedule.
    """
    if text.startswith(_REFERENCE):
        found = _read_reference(text)
        text = "" if found is None else found.signature
    stamp = read(text)
    return None if stamp is None else stamp.key


def count_keys(jobs: Iterable[Mapping[str, str] | None]) -> dict[str | None, int]:
    """Count jobs by the id of the key that signed them, given the headers of each job.

    Under None are the jobs without a signature that can be read.
    """
    counts: dict[str | None, int] = {}
    for headers in jobs:
        key = key_of((headers or {}).get(SIGNATURE, ""))
        counts[key] = counts.get(key, 0) + 1
    return counts


# -- the signed fields. Another choice or order of them needs another `signatures.VERSION`.


def _fields(job: _SignedJob, signed_id: str) -> tuple[Any, ...]:
    headers = job.headers
    others: list[tuple[str, str]] | None = None
    if headers and (len(headers) > 1 or SIGNATURE not in headers):
        others = sorted(item for item in headers.items() if item[0] != SIGNATURE)
    plan = None if job.follow_up is None else _plan_fields(job.follow_up)
    return (signed_id, job.type, job.queue, job.payload, job.codec, job.sequence, others, plan)


def _plan_fields(plan: FollowUp) -> tuple[Any, ...]:
    return (
        plan.type,
        plan.queue,
        plan.priority,
        plan.delay,
        plan.argument,
        plan.sequence,
        plan.steps_aside,
        plan.expires,
        plan.limits,
        None if plan.follow_up is None else _plan_fields(plan.follow_up),
        plan.bound,
        plan.codec,
    )


def _schedule_fields(record: ScheduleRecord) -> tuple[Any, ...]:
    return _fields_of_reference(_reference_of(record, 0, ""), record)


def _fields_of_reference(found: _Reference, job: _ScheduledFields) -> tuple[Any, ...]:
    return (
        found.name,
        job.type,
        job.queue,
        found.priority,
        job.payload,
        job.codec,
        found.rule,
        found.misfire,
        found.catch_up,
        found.overlap,
        found.jitter,
        found.start,
        found.end,
        found.expires,
        found.limits,
        found.steps_aside,
        None if job.follow_up is None else _plan_fields(job.follow_up),
    )


def _handler_fields(handler: DeadLetterHandler) -> tuple[Any, ...]:
    return (_plan_fields(handler.plan), handler.aliases, handler.passes_id)


# -- jobs of schedules


def occurrence_id(schedule: str, occurrence: int) -> str:
    """Return the id of the job of a schedule's occurrence: always the same id, so that no occurrence runs
    twice.
    """
    digest = blake2b(f"{occurrence} {schedule}".encode(), digest_size=10).hexdigest()
    return f"{max(0, occurrence) // 1_000:012x}{digest}"


def _refer(record: ScheduleRecord, job: NewJob) -> NewJob:
    if job.occurrence is None or record.signature is None:
        return job
    data = msgspec.msgpack.encode(_reference_of(record, job.occurrence, record.signature))
    text = f"{_REFERENCE}{binascii.b2a_base64(data, newline=False).decode()}"
    return replace(job, id=occurrence_id(record.name, job.occurrence), headers={SIGNATURE: text})


def _reference_of(record: ScheduleRecord, occurrence: int, signature: str) -> _Reference:
    return _Reference(
        record.name,
        occurrence,
        record.priority,
        record.rule,
        record.misfire,
        record.catch_up,
        str(record.overlap),
        record.jitter,
        record.start,
        record.end,
        record.expires,
        record.limits,
        record.steps_aside,
        signature,
    )


def _read_reference(text: str) -> _Reference | None:
    try:
        return _references.decode(binascii.a2b_base64(text.removeprefix(_REFERENCE), strict_mode=True))
    except (ValueError, msgspec.MsgspecError):
        return None


def _is_occurrence(found: _Reference) -> bool:
    """Return whether the signed rule of a schedule has an occurrence at the time that the reference names."""
    try:
        return first_due(decode_rule(found.rule), found.start, found.end, found.occurrence - 1) == found.occurrence
    except (*UNREADABLE, OverflowError):
        return False


def _has_policies(headers: Mapping[str, str] | None) -> bool:
    return headers is not None and (RETRY in headers or TIMEOUT in headers)


def _show(instant: int) -> str:
    try:
        return f"{to_datetime(instant):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError):
        return f"instant {instant}"
