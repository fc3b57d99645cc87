"""Fires schedules with the middleware of the application around each firing that makes jobs.

The headers that a middleware adds are stored with all jobs of the firing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from mainspring.jobs.middleware import Middlewares, Submit
from mainspring.jobs.recurrence.schedule_records import Fired, Firing


def fire_with_middleware(
    firings: Sequence[Firing], send: Callable[[Sequence[Firing]], list[Fired]], middlewares: Middlewares
) -> list[Fired]:
    """Call `send` with the firings, inside of the middleware and with the headers it adds; return the answers."""
    if middlewares.is_empty:
        return send(firings)
    submits = [_submit_of(firing) for firing in firings]
    with ExitStack() as stack:
        for submit in submits:
            if submit.count:
                stack.enter_context(middlewares.scheduling(submit))
        answers = send([_with_headers(*pair) for pair in zip(firings, submits, strict=True)])
        for submit, fired in zip(submits, answers, strict=True):
            submit.ids = fired.submitted
    return answers


def _submit_of(firing: Firing) -> Submit:
    job = firing.jobs[0] if firing.jobs else None
    kind, queue = ("", "") if job is None else (job.type, job.queue)
    return Submit(kind, queue, len(firing.jobs), {}, schedule=firing.schedule)


def _with_headers(firing: Firing, submit: Submit) -> Firing:
    if not submit.headers:
        return firing
    return replace(
        firing, jobs=tuple(replace(job, headers={**submit.headers, **(job.headers or {})}) for job in firing.jobs)
    )
