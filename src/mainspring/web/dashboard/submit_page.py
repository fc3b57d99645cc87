"""The page that submits a job: a form with a field for each parameter of the handler, and errors at the fields."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import getdoc
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.errors import DuplicateJob, InvalidArguments, JobNotFound, MainspringError, NotAllowed
from mainspring.jobs.handlers import Handler
from mainspring.security.permissions import Scope
from mainspring.web.api.job_views import JobView
from mainspring.web.api.submitting import SubmittedView, may_submit
from mainspring.web.dashboard.argument_form import FormField, arguments_of, fields_of, is_editable, texts_of
from mainspring.web.dashboard.content import block, line
from mainspring.web.dashboard.form_times import TIME_HINT, parse_due
from mainspring.web.dashboard.page import Action, ActionCall, Again, Done, Page, PageCall
from mainspring.web.problems import Refused, problem_of

if TYPE_CHECKING:
    from mainspring.app import Mainspring

OPTIONS = ("queue", "id", "unique", "sequence")
PRIORITIES = ("BEST_EFFORT", "USER_VISIBLE", "USER_BLOCKING")


async def load(call: PageCall) -> Mapping[str, Any]:
    """Return the template context of the form; `copy` in the URL names a job whose arguments it shows."""
    handler = _handler_of(call, call.query.get("type", ""))
    texts: dict[str, str] = {}
    copied = call.query.get("copy")
    if copied and handler is not None:
        try:
            job: JobView = await call.api("get_job", path={"id": copied})
        except (JobNotFound, NotAllowed):
            copied = None
        else:
            texts = _texts_of(fields_of(handler), job)
            texts["queue"] = "" if job.queue == handler.options.queue else job.queue
    return _context(call, handler, texts, copied=copied)


def _texts_of(fields: list[FormField], job: JobView) -> dict[str, str]:
    """Return the arguments of a job as texts for the form, without redacted ones and those a form cannot edit."""
    arguments = msgspec.json.decode(job.arguments) if isinstance(job.arguments, msgspec.Raw) else job.arguments
    visible = [each for each in fields if not each.is_redacted]
    return {name: text for name, text in texts_of(visible, arguments).items() if is_editable(text)}


def _handlers(call: PageCall) -> list[Handler]:
    """Return the handlers of this process whose jobs the caller may submit, by name."""
    found = {handler.name: handler for handler in call.app.registry.all()}
    return [found[name] for name in sorted(found) if may_submit(found[name], call.identity)]


def _handler_of(call: PageCall, name: str) -> Handler | None:
    return next((handler for handler in _handlers(call) if handler.name == name), None)


def _context(
    call: PageCall, handler: Handler | None, texts: Mapping[str, str], *, copied: str | None = None
) -> dict[str, Any]:
    handlers = _handlers(call)
    wanted = call.query.get("type", "")
    return {
        "title": "Submit a job",
        "handlers": [each.name for each in handlers],
        "handler": handler,
        "unknown_type": line(wanted, 100).text if wanted and handler is None else "",
        "documentation": "" if handler is None else block(getdoc(handler.function), 600).text,
        "queue": "" if handler is None else handler.options.queue,
        "priority": "" if handler is None else handler.options.priority.name,
        "fields_of_handler": [] if handler is None else fields_of(handler),
        "texts": texts,
        "errors": {},
        "error": None,
        "existing": None,
        "priorities": PRIORITIES,
        "time_hint": TIME_HINT,
        "copied": copied,
    }


async def submit(call: ActionCall) -> Done | Again:
    """Submit the job of a form, and show the page of the job; or show the form again with its errors.

    If a job with the same unique key exists, store nothing, and show that job. A caller without the scope `read`
    sees an empty form instead of a job. Raises `NotAllowed` if the caller may not submit jobs of the type, or this
    process has no handler for it.
    """
    sent = {name: values[-1] for name, values in call.form.items()}
    handler = _handler_of(call, sent.get("type", ""))
    if handler is None:
        raise NotAllowed(name=call.identity.name, scope=str(Scope.SUBMIT), type=sent.get("type", "")[:200])
    fields = fields_of(handler)
    redacted = {each.input_name for each in fields if each.is_redacted}
    shown = {name: value for name, value in sent.items() if name not in redacted}
    context = _context(call, handler, shown)
    place = "when"
    try:
        body: dict[str, Any] = {"type": handler.name, **parse_due(sent.get("when", ""), "due")}
        place = ""
        body |= {name: sent[name].strip() for name in OPTIONS if sent.get(name, "").strip()}
        if sent.get("priority") in PRIORITIES:
            body["priority"] = sent["priority"]
        body["arguments"] = msgspec.Raw(arguments_of(fields, sent))
        answer: SubmittedView = await call.api("submit_job", body=body)
    except InvalidArguments as error:
        problem = f"{error.problem}; {error.remedy}"
        known = error.parameter in {each.name for each in fields}
        errors = {f"argument.{error.parameter}": problem} if known else {}
        context |= {"errors": errors, "error": None if known else problem}
        return Again(page="submit", context=context, status=422)
    except Refused as refused:
        return _again(context, refused.problem.detail, place, refused.problem.status)
    except DuplicateJob as error:
        context |= {"existing": error.existing_id}
        return _again(context, problem_of(error).detail, "", 409)
    except MainspringError as error:
        problem_shown = problem_of(error)
        return _again(context, problem_shown.detail, "", problem_shown.status)
    location = call.url("jobs", answer.id) if call.has("read") else call.url("submit", type=handler.name)
    if not answer.is_new:
        message = f"A job with the same unique key exists: {line(answer.id, 60).text}. No new job was stored."
        return Done(message=message, location=location, kind="warning")
    return Done(message=f"Submitted job {line(answer.id, 60).text}.", location=location)


def _again(context: dict[str, Any], detail: str, place: str, status: int) -> Again:
    """Return the form again with an error.

    The error is shown at the field `place`. If `place` is empty, the first word of the error names the option at
    which it is shown. If that is no option, the error is shown above the form.
    """
    place = place or next((name for name in ("when", *OPTIONS) if detail.startswith(f"{name} ")), "")
    if detail.startswith(("delay ", "at ")):
        place = "when"
    shown = {"errors": {place: detail}} if place else {"error": detail}
    return Again(page="submit", context=context | shown, status=status)


SUBMIT_PAGE = Page(
    name="submit", path="/submit", title="Submit a job", scopes=(Scope.SUBMIT,), load=load, section="jobs"
)


def pages(_app: Mainspring) -> list[Page]:
    """Return the declaration of the page that submits a job."""
    return [SUBMIT_PAGE]


def actions(_app: Mainspring) -> list[Action]:
    """Return the declaration of the action that submits a job."""
    return [Action(name="submit", path="/submit", scopes=(Scope.SUBMIT,), serve=submit)]
