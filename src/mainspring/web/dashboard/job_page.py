"""The page of one job: its timeline, arguments, result, progress, links, explanation and actions; edit and replay.

The explanation of the API says why the job has its status. `remedies_of` turns it into buttons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from mainspring.errors import InvalidArguments, MainspringError, NotAllowed
from mainspring.jobs.explanation import Reason
from mainspring.jobs.job_policies import RESERVED
from mainspring.jobs.status import JobStatus
from mainspring.security.permissions import Scope
from mainspring.web.api.dead_letters import ReplayView
from mainspring.web.api.decoding import invalid_value
from mainspring.web.api.job_actions import ChangedJobView
from mainspring.web.api.job_views import JobView
from mainspring.web.api.jobs import ExplanationView, LinkedJobsView
from mainspring.web.api.store_state import WorkerListView
from mainspring.web.dashboard.argument_form import (
    FieldKind,
    FormField,
    arguments_of,
    fields_of,
    is_editable,
    texts_of,
)
from mainspring.web.dashboard.content import Shown, block, is_empty, json_block, line
from mainspring.web.dashboard.form_times import TIME_HINT, parse_due
from mainspring.web.dashboard.page import Action, ActionCall, Again, Done, Page, PageCall
from mainspring.web.dashboard.timeline import split_error, timeline_of
from mainspring.web.problems import Refused, problem_of

if TYPE_CHECKING:
    from mainspring.app import Mainspring

MAX_EXPLANATION = 600
"""The largest number of characters of an explanation that the page shows: it may quote a long error."""


async def load_job(call: PageCall) -> Mapping[str, Any]:
    """Return the template context of the page of one job."""
    path = {"id": call.path["id"]}
    job: JobView = await call.api("get_job", path=path)
    explanation: ExplanationView
    links: LinkedJobsView
    worker: str | None
    explanation, links, worker = await asyncio.gather(
        call.api("explain_job", path=path), call.api("get_job_links", path=path), _worker_name(call, job)
    )
    return {
        "title": line(job.type, 60).text,
        "job": job,
        "state_word": _state(job, explanation),
        "job_path": f"/jobs/{quote(job.id, safe='')}",
        "explanation": _sentence(job, explanation.text),
        "remedies": remedies_of(call, job, explanation),
        "remedy": explanation.remedy,
        "until": explanation.until,
        "blocked_by": explanation.blocked_by,
        "timeline": timeline_of(job, call.now, worker),
        "worker": worker,
        "lateness": _lateness(job),
        "arguments": json_block(job.arguments),
        "has_arguments": not is_empty(job.arguments),
        "result": json_block(job.result),
        "has_result": not is_empty(job.result),
        "error": block(job.error),
        "warning": block(job.warning),
        "links": links.links,
        "headers": {name: block(value, 2_000) for name, value in job.headers.items() if name not in RESERVED},
        "actions": _possible(call, job),
        "time_hint": TIME_HINT,
    }


def _sentence(job: JobView, text: str) -> str:
    """Return an explanation for the page of its job: with `This job` instead of the id and type, and cut."""
    start = f"Job {job.id} ({job.type}) "
    words = f"This job {text.removeprefix(start)}" if text.startswith(start) else text
    shown = block(words, MAX_EXPLANATION)
    return f"{shown.text} …" if shown.is_cut else shown.text


def _lateness(job: JobView) -> float | None:
    """Return the seconds from the due time of a job to the start of its last attempt.

    Return None if no attempt has started since the due time.
    """
    if job.started is None or job.started < job.due:
        return None
    return (job.started - job.due).total_seconds()


def _state(job: JobView, explanation: ExplanationView) -> str:
    """Return a word for the state of a job: its status, or, for a PENDING job, why it waits.

    A PENDING job is scheduled, retrying, paused, blocked, staged or due.
    """
    if job.status is not JobStatus.PENDING:
        return job.status.lower()
    words = {
        Reason.NOT_DUE: "scheduled",
        Reason.RETRYING: "retrying",
        Reason.PAUSED: "paused",
        Reason.BEHIND: "blocked",
        Reason.RATE_LIMITED: "blocked",
        Reason.LIMIT_REACHED: "blocked",
        Reason.TAKEN: "staged",
    }
    return words.get(Reason(explanation.reason), "due")


async def _worker_name(call: PageCall, job: JobView) -> str | None:
    if job.worker is None:
        return None
    try:
        found: WorkerListView = await call.api("list_workers")
    except NotAllowed:
        return f"{job.worker}"
    return next((each.name for each in found.workers if each.number == job.worker), f"{job.worker}")


# -- what one can do


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A button on the page of a job that would unblock it or let it run again, or a link to another page."""

    label: str
    url: str
    kind: str = ""
    confirm: str | None = None
    is_link: bool = False


def _possible(call: PageCall, job: JobView) -> dict[str, bool]:
    """Return which actions the status of a job and the rights of the caller allow."""
    may = call.may("operate", type=job.type, queue=job.queue)
    is_letter = job.status is JobStatus.FAILED and job.replayed_as is None
    return {
        "run_now": may and job.status is JobStatus.PENDING and job.due > call.now,
        "cancel": may and (job.status is JobStatus.PENDING or _is_stoppable(job)),
        "retry": may and is_letter,
        "reschedule": may and job.status is JobStatus.PENDING,
        "replay": may and is_letter,
        "submit": call.may("submit", type=job.type, queue=job.queue) and job.type in call.app.registry,
    }


def _is_stoppable(job: JobView) -> bool:
    return job.status is JobStatus.RUNNING and not job.stop_requested


def remedies_of(call: PageCall, job: JobView, explanation: ExplanationView) -> list[Remedy]:
    """Return the remedies for the state of a job that the caller may use.

    These are buttons (run now, resume the queue, retry, ask it to stop) and links (edit and replay, the jobs that
    block it).
    """
    possible = _possible(call, job)
    reason = Reason(explanation.reason)
    found: list[Remedy] = []
    if reason in (Reason.NOT_DUE, Reason.RETRYING, Reason.RECEIVER_PAUSED) and possible["run_now"]:
        found.append(Remedy(label="Run now", url=call.url("jobs", job.id, "run-now"), kind="primary"))
    if reason is Reason.PAUSED and call.may("operate", queue=job.queue):
        label = f"Resume queue {line(job.queue, 40).text}"
        found.append(Remedy(label=label, url=call.url("jobs", job.id, "resume-queue"), kind="primary"))
    if reason in (Reason.FAILED, Reason.QUARANTINED, Reason.EXPIRED) and possible["retry"]:
        found.append(Remedy(label="Retry", url=call.url("jobs", job.id, "retry"), kind="primary"))
        found.append(Remedy(label="Edit and replay", url=call.url("jobs", job.id, "replay"), is_link=True))
    if reason is Reason.OVERTIME and possible["cancel"]:
        found.append(Remedy(label="Ask it to stop", url=call.url("jobs", job.id, "cancel"), kind="danger"))
    found += [
        Remedy(label=f"Open job {line(other, 40).text}", url=call.url("jobs", other), is_link=True)
        for other in explanation.blocked_by[:5]
    ]
    return found


# -- actions


def _name(call: PageCall) -> str:
    return line(call.path["id"], 60).text


async def cancel(call: ActionCall) -> Done:
    """Cancel a job, or ask it to stop if it is RUNNING."""
    changed: ChangedJobView = await call.api("cancel_job", path={"id": call.path["id"]}, body={})
    if changed.is_done:
        return Done(message=f"Canceled job {_name(call)}.")
    if changed.status is JobStatus.CANCELED:
        return Done(message=f"Job {_name(call)} was canceled already.", kind="warning")
    return Done(message=f"Asked job {_name(call)} to stop.")


async def retry(call: ActionCall) -> Done:
    """Run a dead letter again, as the same job."""
    await call.api("retry_job", path={"id": call.path["id"]}, body={})
    return Done(message=f"Job {_name(call)} runs again.")


async def run_now(call: ActionCall) -> Done:
    """Make a PENDING job due now."""
    await call.api("run_job_now", path={"id": call.path["id"]}, body={})
    return Done(message=f"Job {_name(call)} is due now.")


async def reschedule(call: ActionCall) -> Done:
    """Change the due time of a PENDING job; raise `Refused` if the form has no new due time."""
    due = parse_due(call.value("when"), "the new due time")
    if not due:
        raise invalid_value(f"the new due time is empty; write {TIME_HINT}")
    await call.api("reschedule_job", path={"id": call.path["id"]}, body=due)
    return Done(message=f"Rescheduled job {_name(call)}.")


async def resume_queue(call: ActionCall) -> Done:
    """Resume the queue of the job on whose page the button is."""
    job: JobView = await call.api("get_job", path={"id": call.path["id"]})
    await call.api("resume_queue", path={"name": job.queue}, body={})
    return Done(message=f"Resumed queue {line(job.queue, 60).text}.")


# -- edit and replay


@dataclass(frozen=True, slots=True)
class EditForm:
    """The form with which a user edits the arguments of a dead letter."""

    fields: list[FormField]
    """The fields of the form: the parameters of the handler, without those in `kept`; without a handler, one for
    each argument."""
    texts: dict[str, str]
    """The texts in the fields, by the names of the inputs."""
    kept: list[tuple[str, int]]
    """Arguments that a form cannot edit, because they are too long or have control characters, with their sizes.
    They stay as they are."""
    unknown: dict[str, Any]
    """Arguments that the handler has no parameter for."""
    stored: dict[str, Any]
    """The stored arguments of the dead letter, without the values of redacted parameters."""

    def changes(self, sent: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
        """Return the arguments that a sent form changes, and the names of those that it removes.

        A field that the user has emptied removes its argument.
        """
        given: dict[str, Any] = msgspec.json.decode(arguments_of(self.fields, sent))
        changes = {
            name: value
            for name, value in given.items()
            if name not in self.stored or msgspec.json.encode(value) != msgspec.json.encode(self.stored[name])
        }
        removed = [each.name for each in self.fields if each.name in self.stored and each.name not in given]
        return changes, removed + [name for name in self.unknown if sent.get(f"drop.{name}") == "yes"]


def _edit_form(call: PageCall, job: JobView) -> EditForm:
    arguments: Any = job.arguments
    if isinstance(arguments, msgspec.Raw):
        arguments = msgspec.json.decode(arguments)
    if not isinstance(arguments, dict):
        raise invalid_value("the server cannot decode the arguments of this job; use mainspring dlq replay")
    registry = call.app.registry
    if job.type in registry:
        fields = fields_of(registry.get(job.type))
        unknown = {name: value for name, value in arguments.items() if name not in {each.name for each in fields}}
    else:  # the replay says that the handler is missing, if arguments are changed
        fields = [
            FormField(name=name, kind=FieldKind.ANY, type="any", is_required=False, is_many=True)
            for name in arguments
        ]
        unknown = {}
    texts = texts_of(fields, arguments)
    kept = {name for name, text in texts.items() if not is_editable(text)}
    return EditForm(
        fields=[each for each in fields if each.input_name not in kept],
        texts={name: text for name, text in texts.items() if name not in kept},
        kept=[(each.name, len(texts[each.input_name])) for each in fields if each.input_name in kept],
        unknown=unknown,
        stored=arguments,
    )


async def load_replay(call: PageCall) -> Mapping[str, Any]:
    """Return the template context of the page that edits and replays a dead letter."""
    job: JobView = await call.api("get_job", path={"id": call.path["id"]})
    form = _edit_form(call, job)
    return _replay_context(call, job, form, form.texts)


def _replay_context(call: PageCall, job: JobView, form: EditForm, texts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "title": "Edit and replay",
        "job": job,
        "form": form,
        "texts": texts,
        "errors": {},
        "error": None,
        "is_possible": job.status is JobStatus.FAILED and job.replayed_as is None,
        "has_handler": job.type in call.app.registry,
        "plan": None,
        "changed": [],
        "removed": [],
        "dropped": set(form.unknown),
        "error_sections": split_error(job.error),
        "unknown": {name: _json_line(value) for name, value in form.unknown.items()},
        "when": "",
        "time_hint": TIME_HINT,
    }


def _json_line(value: Any) -> Shown:
    return line(msgspec.json.encode(value).decode())


async def replay(call: ActionCall) -> Done | Again:
    """Replay a dead letter with the arguments of a form, if the field `do` of the form is `replay`.

    Otherwise only show the new arguments, and replay nothing. If the replay is refused, for example because the
    arguments are wrong, show the form again with the errors.
    """
    job: JobView = await call.api("get_job", path={"id": call.path["id"]})
    form = _edit_form(call, job)
    sent = {name: values[-1] for name, values in call.form.items()}
    context = _replay_context(call, job, form, sent) | {
        "dropped": {name for name in form.unknown if sent.get(f"drop.{name}") == "yes"},
        "when": sent.get("when", ""),
    }
    try:
        changes, removed = form.changes(sent)
        body: dict[str, Any] = {"ids": [job.id], "changes": changes, "without": removed}
        due = parse_due(sent.get("when", ""))
        body |= {"start": due["at"]} if "at" in due else {}
        if "delay" in due:
            body["start"] = call.now + _delta(due["delay"])
        is_dry_run = sent.get("do") != "replay"
        answer: ReplayView = await call.api("replay_dead_letters", body={**body, "dry_run": is_dry_run})
    except InvalidArguments as error:
        problem = f"{error.problem}; {error.remedy}"
        context |= {"errors": {error.parameter: problem}, "error": None if error.parameter else problem}
        return Again(page="job_replay", context=context, status=422)
    except Refused as refused:
        return Again(
            page="job_replay", context=context | {"error": refused.problem.detail}, status=refused.problem.status
        )
    except MainspringError as error:
        problem_shown = problem_of(error)
        return Again(
            page="job_replay", context=context | {"error": problem_shown.detail}, status=problem_shown.status
        )
    if is_dry_run:
        letters = answer.letters or []
        plan = json_block(letters[0].arguments) if letters else json_block({})
        context |= {"plan": plan, "changed": sorted(changes), "removed": sorted(removed)}
        return Again(page="job_replay", context=context, status=200)
    if not answer.replayed:
        message = f"Job {_name(call)} was replayed, retried or deleted meanwhile."
        return Done(message=message, location=call.url("jobs", job.id), kind="warning")
    new_id = answer.replayed[0].job
    return Done(message=f"Replayed job {_name(call)} as {new_id}.", location=call.url("jobs", new_id))


def _delta(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise invalid_value("the due time is too far away; give an earlier one") from None


JOB_PAGE = Page(
    name="job",
    path="/jobs/{id}",
    title="Job",
    scopes=(Scope.READ,),
    load=load_job,
    section="jobs",
    live=("state", "history", "outcome", "facts"),
)
REPLAY_PAGE = Page(
    name="job_replay",
    path="/jobs/{id}/replay",
    title="Edit and replay",
    scopes=(Scope.OPERATE,),
    load=load_replay,
    section="jobs",
)


def pages(_app: Mainspring) -> list[Page]:
    """Return the declarations of the page of a job and of the page that edits and replays a dead letter."""
    return [JOB_PAGE, REPLAY_PAGE]


def actions(_app: Mainspring) -> list[Action]:
    """Return the declarations (path, scope and function) of the actions on one job, such as cancel and retry."""
    served = {
        "cancel": cancel,
        "retry": retry,
        "run-now": run_now,
        "reschedule": reschedule,
        "resume-queue": resume_queue,
        "replay": replay,
    }
    return [
        Action(name=f"{verb}-job", path=f"/jobs/{{id}}/{verb}", scopes=(Scope.OPERATE,), serve=serve)
        for verb, serve in served.items()
    ]
