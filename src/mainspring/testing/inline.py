"""Inline mode: every job has run when its submit returns, whatever its delay.

For tests of code that submits: no waiting, no clock to move. Handlers run on a worker as always, so what they
raise becomes a retry or a dead letter and never reaches the submitter; retries run at once, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from mainspring.app import Mainspring
from mainspring.jobs.context import runs_job
from mainspring.testing.time_travel import TimeTravel, time_travel

FAR = timedelta(days=366)
"""How far the clock moves with each submit: beyond every delay and retry that a test would use."""


@contextmanager
def inline(app: Mainspring) -> Iterator[TimeTravel]:
    """Let each submit of `app` return only after its job, and all jobs that it submits, have run."""
    with time_travel(app) as travel:

        def run_everything() -> None:
            if not runs_job():  # else the submit that runs this handler takes care of it
                travel.fast_forward(FAR)

        app.manager().submission.after_submit = run_everything
        yield travel
