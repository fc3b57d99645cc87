"""Assertions about submitted jobs: `assert_submitted(cancel_order, 42)`.

They read the store of the application, and find jobs with any status. So they work inside of `recording`, `inline`
and `time_travel`, and on a real store.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

from mainspring.clock import Duration
from mainspring.jobs.info import JobInfo, to_info
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.policies import Unique
from mainspring.jobs.records import Query
from mainspring.runners.validation import require_positive
from mainspring.testing.clock_stepper import PAGE, find_all
from mainspring.testing.expectations import Expectation

MAX_LISTED = 10
TOLERANCE = 1.0


def submitted(job: JobFunction[..., Any]) -> list[JobInfo]:
    """Return all jobs of a handler in the store, with any status, in the order of their submission."""
    _require_job(job)
    manager = job.source.manager()
    records = find_all(manager, Query(type=job.name, limit=PAGE))
    return [to_info(record, manager.serializers) for record in records]


def assert_submitted(
    job: JobFunction[..., Any],
    /,
    *args: Any,
    times: int | None = None,
    queue: str | None = None,
    due: datetime | Duration | None = None,
    within: Duration = TOLERANCE,
    sequence: str | None = None,
    unique: str | Unique | None = None,
    **kwargs: Any,
) -> JobInfo:
    """Fail unless a job of this handler was submitted with these arguments; return the first match.

    Pass arguments as to `submit`. Arguments that are left out have their defaults; `...` and `unittest.mock.ANY`
    match anything. Without any arguments, every job of the handler matches. `due` is an instant, or the time from
    submit to due; `within` is the tolerance, by default a second. Options can also be passed as to a submit:
    `assert_submitted(cancel_order.after(1800), 42)`. `times` is the exact number of matches.
    """
    __tracebackhide__ = True
    if times is not None:
        require_positive(times, "times", "jobs; use refute_submitted() for none")
    _require_job(job)
    _require_no_clash(job, times=times, queue=queue, due=due, within=within, sequence=sequence, unique=unique)
    wanted = job.options(queue=queue, sequence=sequence, unique=unique)
    expectation = Expectation(wanted, args, kwargs, due=due, within=within)
    found = _compare(job, expectation)
    matching = [info for info, differences in found if not differences]
    if len(matching) == times or (times is None and matching):
        return matching[0]
    raise _failure(job, expectation, found, len(matching), times)


def refute_submitted(
    job: JobFunction[..., Any],
    /,
    *args: Any,
    queue: str | None = None,
    due: datetime | Duration | None = None,
    within: Duration = TOLERANCE,
    sequence: str | None = None,
    unique: str | Unique | None = None,
    **kwargs: Any,
) -> None:
    """Fail if a job of this handler was submitted with these arguments. `assert_submitted` describes them."""
    __tracebackhide__ = True
    _require_job(job)
    _require_no_clash(job, queue=queue, due=due, within=within, sequence=sequence, unique=unique)
    wanted = job.options(queue=queue, sequence=sequence, unique=unique)
    expectation = Expectation(wanted, args, kwargs, due=due, within=within)
    matching = [info for info, differences in _compare(job, expectation) if not differences]
    if matching:
        listed = "".join(f"\n  {expectation.describe(info)}" for info in matching[:MAX_LISTED])
        more = _more(len(matching))
        raise AssertionError(f"{expectation} was submitted, and should not have been:{listed}{more}")


def _compare(job: JobFunction[..., Any], expectation: Expectation) -> list[tuple[JobInfo, list[str]]]:
    manager = job.source.manager()
    records = find_all(manager, Query(type=job.name, limit=PAGE))
    return [(to_info(record, manager.serializers), expectation.differences(record)) for record in records]


def _failure(
    job: JobFunction[..., Any],
    expectation: Expectation,
    found: list[tuple[JobInfo, list[str]]],
    matching: int,
    times: int | None,
) -> AssertionError:
    wanted = "" if times is None else f" {_times(times)}"
    counted = f", but {_times(matching)}" if matching else ""
    closest = sorted(found, key=lambda pair: len(pair[1]))
    lines = [f"{expectation} was not submitted{wanted}{counted}"]
    if found:
        lines.append("submitted jobs, the closest match first:")
        for info, differences in closest[:MAX_LISTED]:
            why = f"  <- {'; '.join(differences)}" if differences else ""
            lines.append(f"  {expectation.describe(info)}{why}")
        lines += [line for line in (_more(len(found)).strip("\n"),) if line]
    others = Counter(record.type for record in find_all(job.source.manager(), Query(limit=PAGE)))
    del others[job.name]
    if others:
        listed = ", ".join(f"{count:,} of {name}" for name, count in others.most_common(MAX_LISTED))
        lines.append(f"jobs of other handlers: {listed}")
    elif not found:
        lines.append("no job was submitted at all")
    return AssertionError("\n".join(lines))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _more(count: int) -> str:
    return f"\n  and {count - MAX_LISTED:,} more" if count > MAX_LISTED else ""


def _require_job(job: object) -> None:
    if not isinstance(job, JobFunction):
        raise TypeError(f"the first argument must be a job function, as @app.job returns it, got {job!r}")


def _require_no_clash(job: JobFunction[..., Any], *, within: Duration, **options: Any) -> None:
    """Raise `TypeError` if a given option of the assertion has the name of a parameter of the handler."""
    for name, value in {**options, "within": None if within == TOLERANCE else within}.items():
        if value is not None and name in job.handler.arguments.names:
            raise TypeError(
                f"{name!r} is a parameter of {job.name} and an option of this assertion; pass the argument of the "
                f"job by position, and submit options with the job: {job.name.rpartition('.')[2]}.options(...)"
            )
