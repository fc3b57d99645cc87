"""The endpoints that change a job: cancel, retry, reschedule, run now.

The answers have the id and the status of the job only, because the scope `operate` does not include `read`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from mainspring.errors import InvalidTransition
from mainspring.jobs.status import JobStatus
from mainspring.jobs.submit_options import SubmitOptions
from mainspring.security.permissions import Scope
from mainspring.web.api.decoding import checked_values, invalid_value
from mainspring.web.api.endpoint import AnswerType, ApiAnswer, ApiCall, EmptyBody, Endpoint, Instant, NoQuery
from mainspring.web.api.job_views import EXAMPLE_ID, JOB_ID, find_job

if TYPE_CHECKING:
    from mainspring.app import Mainspring

PENDING_ONLY = "PENDING"
UNREPLAYED = "FAILED, was not replayed, and whose unique key no other job has,"


class RescheduleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new due time of a job: give either `delay` or `at`."""

    delay: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="How many seconds from now the job is due.")
    ] = None
    at: Annotated[Instant | None, Meta(description="When the job is due, with a time zone.")] = None


class ChangedJobView(Struct, frozen=True, kw_only=True):
    """The answer to a change of a job: its id, its status, and whether the change is done."""

    id: str
    status: Annotated[JobStatus, Meta(description="The status of the job after the change.")]
    is_done: Annotated[
        bool,
        Meta(description="False if the job was RUNNING, and is asked to stop, or was CANCELED before."),
    ]


class JobActions:
    """The endpoints that change one job."""

    async def cancel(self, call: ApiCall[EmptyBody, NoQuery]) -> ApiAnswer:
        """Cancel a PENDING job, or ask a RUNNING job to stop; a CANCELED job stays as it is.

        Raises `InvalidTransition` if the job is COMPLETED or FAILED.
        """
        record = await find_job(call, Scope.OPERATE)
        is_done = await call.app.cancel_async(record.id)
        status = JobStatus.CANCELED if is_done else (await find_job(call, Scope.OPERATE)).status
        if status in (JobStatus.COMPLETED, JobStatus.FAILED):
            raise InvalidTransition(
                job_id=record.id, status=str(status), action="cancel", needs="PENDING or RUNNING"
            )
        return _answer(record.id, status, is_done=is_done)

    async def retry(self, call: ApiCall[EmptyBody, NoQuery]) -> ApiAnswer:
        """Make a dead letter PENDING again, as the same job.

        Raises `InvalidTransition` for any other job, and if another job has the unique key of the dead letter.
        """
        record = await find_job(call, Scope.OPERATE)
        try:
            await call.app.retry_async(record.id)
        except InvalidTransition:
            if call.identity.permissions.queues is None:
                raise
            # the error may name the job that has the unique key, which may be in another queue
            raise await self._refusal(call, "retry", needs=UNREPLAYED) from None
        return _answer(record.id, JobStatus.PENDING)

    async def reschedule(self, call: ApiCall[RescheduleBody, NoQuery]) -> ApiAnswer:
        """Change the due time of a PENDING job; raise `InvalidTransition` if the job has started or ended.

        Raises `Refused` unless the body has one valid due time.
        """
        record = await find_job(call, Scope.OPERATE)
        delay, at = call.body.delay, call.body.at
        if (delay is None) == (at is None):
            raise invalid_value("a job needs one new due time; give either delay or at")
        with checked_values():
            wait = None if delay is None else timedelta(seconds=delay)
            SubmitOptions().changed(delay=wait, at=at).due(call.app.manager().engine.now())
        if not await call.app.reschedule_async(record.id, delay=wait, at=at):
            raise await self._refusal(call, "reschedule")
        return _answer(record.id, JobStatus.PENDING)

    async def run_now(self, call: ApiCall[EmptyBody, NoQuery]) -> ApiAnswer:
        """Make a PENDING job due now; raise `InvalidTransition` if it has started or ended."""
        record = await find_job(call, Scope.OPERATE)
        if not await call.app.run_now_async(record.id):
            raise await self._refusal(call, "run")
        return _answer(record.id, JobStatus.PENDING)

    async def _refusal(self, call: ApiCall[Any, Any], action: str, needs: str = PENDING_ONLY) -> InvalidTransition:
        record = await find_job(call, Scope.OPERATE)
        return InvalidTransition(job_id=record.id, status=str(record.status), action=action, needs=needs)


def _answer(job_id: str, status: JobStatus, *, is_done: bool = True) -> ApiAnswer:
    return ApiAnswer(content=ChangedJobView(id=job_id, status=status, is_done=is_done))


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declarations of the endpoints that change one job."""
    actions = JobActions()

    def declare(verb: str, summary: str, description: str, status: str, **more: Any) -> Endpoint:
        example = {"id": EXAMPLE_ID, "status": status, "is_done": True}
        options: dict[str, Any] = {"body": EmptyBody, "problems": ("job-not-found", "invalid-transition"), **more}
        return Endpoint(
            name=f"{verb.replace('-', '_')}_job" if verb != "run-now" else "run_job_now",
            method="POST",
            path=f"/jobs/{{id}}/{verb}",
            subject="jobs",
            summary=summary,
            description=description,
            scopes=(Scope.OPERATE,),
            path_parameters=JOB_ID,
            answers={200: AnswerType(type=ChangedJobView, description="The job was changed.", example=example)},
            **options,
        )

    return [
        declare(
            "cancel",
            "Cancel a job.",
            "A RUNNING job is asked to stop, and is not retried.",
            "CANCELED",
            serve=actions.cancel,
        ),
        declare(
            "retry",
            "Run a dead letter again, as the same job.",
            "Its counters of failed attempts begin again.",
            "PENDING",
            serve=actions.retry,
        ),
        declare(
            "reschedule",
            "Change the due time of a PENDING job.",
            "Give `delay` or `at`.",
            "PENDING",
            serve=actions.reschedule,
            body=RescheduleBody,
            body_examples={"in an hour": {"delay": 3600}, "at an instant": {"at": "2026-11-17T12:30:00Z"}},
            problems=("job-not-found", "invalid-transition", "invalid-value"),
        ),
        declare(
            "run-now",
            "Make a PENDING job due now.",
            "It starts when a worker has a free slot.",
            "PENDING",
            serve=actions.run_now,
        ),
    ]
