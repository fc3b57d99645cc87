"""What users of other job systems write, and how it is written here, for error messages.

Only names that Mainspring does not have are listed; a test checks that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from mainspring.similar_names import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_SUBMIT = "submit(...); when and how come before it: after(60).submit(...), options(queue=...).submit(...)"
_AFTER = "after(60).submit(...), or at(instant).submit(...)"
_ADD_SCHEDULE = "@app.cron(...) or @app.every(...) above @app.job, or app.schedules.put(name, job, rule)"
_FIELD_OF_CRON = 'a cron expression: @app.cron("0 2 * * *", tz="Asia/Taipei"), or @app.every(timedelta(minutes=5))'
_DECORATOR = "@app.job"

_OF_JOBS = {
    "apply": "a call of the function itself, or submit(...).result()",
    "apply_async": _SUBMIT,
    "defer": _SUBMIT,
    "defer_async": "await submit_async(...)",
    "delay": _SUBMIT,
    "enqueue": _SUBMIT,
    "enqueue_at": _AFTER,
    "enqueue_in": _AFTER,
    "kiq": "await submit_async(...)",
    "message": "bind(...), for then=",
    "s": "bind(...), for then=",
    "schedule": _AFTER,
    "send": _SUBMIT,
    "send_with_options": _SUBMIT,
    "si": "bind(...), for then=",
    "signature": "bind(...), for then=",
    "starmap": "submit_many([...])",
}
"""Attributes of a task of Celery, RQ, Dramatiq, Huey, arq, Procrastinate or taskiq."""

_OF_APPLICATIONS = {
    "actor": _DECORATOR,
    "add_job": _ADD_SCHEDULE,
    "add_periodic_task": _ADD_SCHEDULE,
    "add_schedule": _ADD_SCHEDULE,
    "conf": "arguments of Mainspring(...) and options of @app.job",
    "enqueue": "submit(...) of the job function that @app.job returns",
    "enqueue_at": "at(instant).submit(...) of the job function that @app.job returns",
    "enqueue_in": "after(60).submit(...) of the job function that @app.job returns",
    "enqueue_job": "await submit_async(...) of the job function that @app.job returns",
    "periodic_task": _ADD_SCHEDULE,
    "scheduled_job": _ADD_SCHEDULE,
    "send_task": "app.remote_job(name).submit(...)",
    "shared_task": _DECORATOR,
    "start": "app.run(), or with app.running():",
    "task": _DECORATOR,
    "worker_main": "app.run()",
}
"""Attributes of an application, a broker, a queue or a scheduler of these systems."""

_OPTIONS = {
    "acks_late": "no such option: a job whose worker died always runs again, unless at_most_once=True is given",
    "actor_name": "name=",
    "autoretry_for": "retry=Retry(on=(ConnectionError,))",
    "coalesce": 'misfire="once"',
    "countdown": "after(60).submit(...)",
    "cron": _FIELD_OF_CRON,
    "day": _FIELD_OF_CRON,
    "day_of_week": _FIELD_OF_CRON,
    "default_retry_delay": "retry=Retry(base=60)",
    "eta": "at(instant).submit(...)",
    "hour": _FIELD_OF_CRON,
    "hours": _FIELD_OF_CRON,
    "ignore_result": "keep_result=False",
    "job_id": 'options(id="...")',
    "job_timeout": "timeout=",
    "max_age": "expires=",
    "max_backoff": "retry=Retry(max_delay=600)",
    "max_instances": "overlap=, or concurrency=Concurrency(1) of @app.job",
    "max_jobs": "concurrency=Concurrency(10)",
    "max_retries": "retry=Retry(max_attempts=4), for the first attempt and three retries",
    "max_tries": "retry=Retry(max_attempts=4), for the first attempt and three retries",
    "min_backoff": "retry=Retry(base=2)",
    "minute": _FIELD_OF_CRON,
    "minutes": _FIELD_OF_CRON,
    "misfire_grace_time": 'misfire="skip" or "once"',
    "queue_name": "queue=",
    "rate_limit": "rate=Rate(100, per=60)",
    "result_expires": "keep_result=timedelta(hours=1)",
    "result_ttl": "keep_result=timedelta(hours=1)",
    "retries": "retry=Retry(max_attempts=4), for the first attempt and three retries",
    "retry_backoff": "retry=Retry(base=2, factor=2)",
    "retry_delay": "retry=Retry(base=60)",
    "second": _FIELD_OF_CRON,
    "seconds": _FIELD_OF_CRON,
    "soft_time_limit": "soft_timeout=",
    "throws": "retry=Retry(give_up_on=(ValueError,))",
    "time_limit": "timeout=",
    "trigger": _FIELD_OF_CRON,
    "ttl": "expires=, or keep_result= for results",
    "week": _FIELD_OF_CRON,
}
"""Options of tasks, submits and schedules of these systems."""


def missing_attribute(owner: object, name: str, *, of_jobs: bool) -> AttributeError:
    """Return the error for an attribute that a job function, or else an application, does not have."""
    kind = type(owner).__name__
    ours = (_OF_JOBS if of_jobs else _OF_APPLICATIONS).get(name)
    if ours is None:
        return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=owner)
    return AttributeError(f"{kind} has no {name!r}; write {ours}", name=name, obj=owner)


def option_hint(name: str) -> str | None:
    """Return how to write an option of another system; None if none is known."""
    ours = _OPTIONS.get(name)
    return None if ours is None else f"write {ours}"


def refuse_options(where: str, unknown: Iterable[str], known: Iterable[str]) -> TypeError:
    """Return the error for options that a call does not have, with the way to write them."""
    known = sorted(known)
    parts = []
    for name in sorted(unknown):
        hint = option_hint(name) or did_you_mean(name, known)
        parts.append(f"{where} has no option {name!r}" + (f"; {hint}" if hint else ""))
    return TypeError(f"{'; '.join(parts)} (it has {', '.join(known)})")


def explains_options(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method raise the error of `refuse_options` for keyword arguments that it does not have."""
    code = method.__code__
    known = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - {"self"}
    where = f"{method.__name__}()"

    @wraps(method)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        if not options.keys() <= known:
            raise refuse_options(where, options.keys() - known, known)
        return method(*args, **options)

    return checked
