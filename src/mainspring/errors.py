"""The exceptions of Mainspring. Each carries its data; its message says what was wrong and what to do.

MainspringError
├── RunnerClosed (also a RuntimeError)
├── QueueFull
├── QueueEmpty
├── WouldDeadlock (also a RuntimeError)
├── DuplicateJob
├── UnknownHandler
├── UnknownSerializer
├── InvalidArguments
│   └── ArgumentsTooLarge (also a LimitExceeded)
├── LimitExceeded
├── JobNotFound
├── InvalidTransition
├── JobFailed
├── PartialSubmit
├── ScheduleInvalid
├── ScheduleBusy
├── ScheduleNotFound
├── RefusedByStore
├── SignatureInvalid
├── NoSigningKey
├── TokenInvalid
├── TokenNotFound
├── WorkerAlive
├── WorkerNotFound
├── NotAllowed
├── CallbackRefused
├── CannotListen
├── MissingExtra (also an ImportError)
└── EngineUnavailable
    ├── StoreCorrupt
    ├── StoreTooNew
    ├── StoreMoved
    └── StoreReplaced

Errors can be pickled and copied, so they can be passed between threads, processes and machines.
"""

from datetime import timedelta
from typing import Any

from mainspring.plurals import format_count
from mainspring.similar_names import did_you_mean


def _without_constructor(error_class: type[Exception], *args: object) -> Exception:
    return error_class.__new__(error_class, *args)


class MainspringError(Exception):
    """The base class of all errors of Mainspring: `except MainspringError` catches them and no others."""

    def __reduce__(self) -> tuple[Any, ...]:
        # `Exception.__reduce__` calls the class with `args`, the finished message, but these constructors
        # take keywords. The message is in `args` already, the data in `__dict__`.
        return _without_constructor, (type(self), *self.args), self.__dict__


class RunnerClosed(MainspringError, RuntimeError):
    """The runner is shut down or shutting down, so it did not accept the task, item or runner."""

    def __init__(self, *, runner: str) -> None:
        self.runner = runner
        super().__init__(
            f"runner {runner!r} is shut down or shutting down, and takes no more tasks; post before shutdown() or "
            "inside the with block, or, during the shutdown, with ShutdownBehavior.BLOCK from inside one of its "
            "tasks"
        )


class QueueFull(MainspringError):
    """A runner or a `FuncQueue` with a capacity had no room for another task or item, and refused it."""

    def __init__(self, *, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        super().__init__(
            f"{name!r} is full: it has {format_count(capacity, 'queued task or item', 'queued tasks or items')}, "
            "its capacity; try again after some were handled, or create it with a larger capacity="
        )


class QueueEmpty(MainspringError):
    """A `RingBuffer` had no item to return."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(f"buffer {name!r} is empty; try again after the next push()")


class WouldDeadlock(MainspringError, RuntimeError):
    """A task would wait for an event that cannot happen before this task itself has ended."""

    def __init__(self, *, runner: str, task: str) -> None:
        self.runner = runner
        self.task = task
        super().__init__(
            f"waiting for {task!r} inside of a task of runner {runner!r} never ends; "
            "continue in another task with post_and_reply(), or wait outside of the runner"
        )


class DuplicateJob(MainspringError):
    """A job with this id or this unique key exists already; nothing was stored."""

    def __init__(self, *, existing_id: str, key: str | None = None) -> None:
        self.existing_id = existing_id
        self.key = key
        why = "exists already" if key is None else f"has the unique key {key!r}"
        remedy = "submit with another id=" if key is None else "use Unique(on_conflict='return') or 'replace'"
        super().__init__(
            f"job {existing_id!r} {why} and nothing was stored; app.get({existing_id!r}) returns it, or {remedy}"
        )


class UnknownHandler(MainspringError):
    """A job names a handler that this application has not registered."""

    def __init__(self, *, name: str, known: tuple[str, ...] = ()) -> None:
        self.name = name
        self.known = known
        listed = ", ".join(known) or "none"
        remedy = "decorate it with @app.job, or import its module with Mainspring(include=[...])"
        super().__init__(
            f"no handler is registered as {name!r} (registered: {listed}); {did_you_mean(name, known) or remedy}"
        )


class InvalidArguments(MainspringError):
    """The arguments do not match the handler's signature. Nothing was stored, or the attempt did not start."""

    def __init__(
        self,
        *,
        handler: str,
        parameter: str | None,
        problem: str,
        remedy: str = "pass a value that matches the signature",
    ) -> None:
        self.handler = handler
        self.parameter = parameter
        self.problem = problem
        self.remedy = remedy
        where = "" if parameter is None else f", parameter {parameter!r}"
        super().__init__(f"{handler}{where}: {problem}; {remedy}")


class UnknownSerializer(MainspringError):
    """The data of a job are encoded by a serializer that this process does not have."""

    def __init__(self, *, name: str, known: tuple[str, ...]) -> None:
        self.name = name
        self.known = known
        super().__init__(
            f"the data are encoded by the serializer {name!r}, and this process has only {', '.join(known)}; "
            "give Mainspring(serializer=...) the serializer with this name, or run a version that has it"
        )


class LimitExceeded(MainspringError):
    """A size or a number exceeds its limit, so the request was not accepted.

    A submit beyond the quota of a queue raises it, too: see `app.queue(name, max_depth=..., submit_rate=...)`.
    """

    def __init__(
        self,
        *,
        what: str,
        size: int,
        limit: int,
        remedy: str,
        problem: str | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        self.what = what
        self.size = size
        self.limit = limit
        self.remedy = remedy
        self.retry_after = retry_after
        """After this time the submit rate of the queue admits the same request.

        None if that is not known, or if it was not a submit rate that was exceeded.
        """
        text = problem or f"the size of {what} is {size:,}, the limit is {limit:,}"
        MainspringError.__init__(self, f"{text}; {remedy}")


class ArgumentsTooLarge(LimitExceeded, InvalidArguments):
    """The encoded arguments of a job exceed the size limit, so the job was not stored."""

    def __init__(
        self, *, handler: str, size: int, limit: int, setting: str = "Mainspring(max_payload=...)"
    ) -> None:
        self.handler = handler
        self.parameter = None
        self.problem = "arguments too large"
        LimitExceeded.__init__(
            self,
            what=f"the encoded arguments of {handler}, in bytes,",
            size=size,
            limit=limit,
            remedy=f"store the data elsewhere and pass its key, or raise {setting}",
        )


class JobNotFound(MainspringError):
    """No job has this id: it was never stored, or it was deleted (by a purge, or after its retention time)."""

    def __init__(self, *, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"there is no job {job_id!r}; check the id and that this is the right store")


class WorkerNotFound(MainspringError):
    """The caller has no remote worker with this number: another token enrolled it, it left, or its lease ended."""

    def __init__(self, *, number: int | str) -> None:
        self.number = number
        super().__init__(
            f"this caller has no remote worker {number}: another token has enrolled it, it has left, or it sent "
            "no heartbeat within its lease; enroll again, and drop the results of its jobs"
        )


class WorkerAlive(MainspringError):
    """A worker that is a process of the application is alive, so that it cannot be removed from the store."""

    def __init__(self, *, number: int, name: str) -> None:
        self.number = number
        self.name = name
        super().__init__(
            f"worker {number} ({name}) is alive and is a process of the application, which would enroll again; "
            "stop the process instead"
        )


class InvalidTransition(MainspringError):
    """The status of a job does not allow the operation. The job was not changed."""

    def __init__(self, *, job_id: str, status: str, action: str, needs: str) -> None:
        self.job_id = job_id
        self.status = status
        self.action = action
        self.needs = needs
        super().__init__(f"cannot {action} job {job_id!r}: it is {status}; only a job that is {needs} allows this")


class JobFailed(MainspringError):
    """A caller asked for the result of a job that has none, because the job failed or was canceled."""

    def __init__(self, *, job_id: str, status: str, reason: str) -> None:
        self.job_id = job_id
        self.status = status
        self.reason = reason
        again = ", app.retry() runs it again" if status == "FAILED" else ""
        super().__init__(
            f"job {job_id!r} is {status} and has no result: {reason}; "
            f"app.get({job_id!r}) shows its attempts{again}"
        )


class PartialSubmit(MainspringError):
    """A bulk submit stored only some of its jobs: those in `done` are stored, those in `failed` are not.

    If no server has answered, NATS may have stored some of those in `failed`.
    """

    def __init__(
        self,
        *,
        done: list[str],
        failed: list[str],
        cause: str,
        remedy: str = "submit those in `failed` again; with SQLite, atomic=True stores all or nothing",
    ) -> None:
        self.done = done
        self.failed = failed
        self.cause = cause
        super().__init__(
            f"{format_count(len(done), 'job was', 'jobs were')} stored and {len(failed):,} "
            f"{'was' if len(failed) == 1 else 'were'} not: {cause}; {remedy}"
        )


class ScheduleInvalid(MainspringError):
    """The rule of a schedule is invalid; nothing was scheduled."""

    def __init__(self, *, rule: str, problem: str, remedy: str) -> None:
        self.rule = rule
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{rule}: {problem}; {remedy}")


class ScheduleNotFound(MainspringError):
    """No schedule has this name: it was never stored, or it was removed."""

    def __init__(self, *, name: str, known: tuple[str, ...] = ()) -> None:
        self.name = name
        self.known = known
        remedy = (
            "check the name, app.schedules.list() shows them all, and those that are declared in code are stored "
            "when a worker starts"
        )
        super().__init__(f"there is no schedule {name!r}; {did_you_mean(name, known) or remedy}")


class ScheduleBusy(MainspringError):
    """A schedule with `overlap="skip"` was not triggered, because an earlier job of it has not ended."""

    def __init__(self, *, name: str, job_id: str) -> None:
        self.name = name
        self.job_id = job_id
        super().__init__(
            f"schedule {name!r} was not triggered: its job {job_id!r} has not ended, and overlap='skip' allows "
            f"one at a time; wait for it, or cancel it with app.cancel({job_id!r})"
        )


class RefusedByStore(MainspringError):
    """The store works, but refused this data or this operation."""

    def __init__(
        self,
        *,
        engine: str,
        reason: str,
        remedy: str = "try with other or smaller data",
        is_too_large: bool = False,
    ) -> None:
        self.engine = engine
        self.reason = reason
        self.remedy = remedy
        self.is_too_large = is_too_large
        """Whether the data are larger than the store can hold, so that another try cannot succeed."""
        super().__init__(f"{engine} refused this: {reason}; nothing of it was stored; {remedy}")


class SignatureInvalid(MainspringError):
    """The signature of a job or a schedule is missing, wrong, expired or of an unknown key."""

    def __init__(self, *, what: str, problem: str, remedy: str) -> None:
        self.what = what
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{what}: {problem}; {remedy}")


class NoSigningKey(MainspringError):
    """A job or a schedule must be signed, and the key ring of this application can only verify."""

    def __init__(self, *, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what} must be signed, and the key ring of this application has no key to sign with; give "
            "KeyRing(..., sign_with='2026-11') the id of a secret key, or do this in a process that has one"
        )


class TokenInvalid(MainspringError):
    """The token of a request is malformed, unknown, expired or revoked. The message never contains the token."""

    def __init__(self, *, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}; {remedy}")


class TokenNotFound(MainspringError):
    """No active token has this name or id, or several tokens have this name."""

    def __init__(self, *, name: str, known: tuple[str, ...] = (), ids: tuple[str, ...] = ()) -> None:
        self.name = name
        self.known = known
        self.ids = ids
        """The ids of the tokens that have this name, if there are several."""
        if ids:
            text = f"{len(ids)} tokens have the name {name!r}; name one by its id: {', '.join(ids)}"
        else:
            remedy = did_you_mean(name, known) or "app.tokens.list() shows them all"
            text = f"there is no token {name!r} that can be used; {remedy}"
        super().__init__(text)


class NotAllowed(MainspringError):
    """A caller of the HTTP server is identified, but lacks the scope for the action, its job type or its queue."""

    def __init__(self, *, name: str, scope: str, type: str | None = None, queue: str | None = None) -> None:
        self.name = name
        self.scope = scope
        self.type = type
        self.queue = queue
        of_type = "all types" if type is None else f"type {type!r}"
        of_queue = "all queues" if queue is None else f"queue {queue!r}"
        super().__init__(
            f"the token {name!r} does not allow this: it needs the scope {scope} for {of_type} and {of_queue}; "
            f"use a token that has it: mainspring tokens create NAME --scope {scope}"
        )


class CallbackRefused(MainspringError):
    """A callback must not be sent: the URL is not allowed, or its host has an address that is not.

    The URL is shown without its query.
    """

    shows_traceback = False

    def __init__(self, *, url: str, reason: str, remedy: str) -> None:
        self.url = url
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{url} must not be called: {reason}; {remedy}")


class CannotListen(MainspringError):
    """The HTTP server cannot listen at its address, or must not, because requests there would be unprotected."""

    def __init__(self, *, address: str, reason: str, remedy: str) -> None:
        self.address = address
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"the HTTP server cannot listen at {address}: {reason}; {remedy}")


class MissingExtra(MainspringError, ImportError):
    """A feature needs packages that are not installed. An extra of Mainspring, such as `web`, installs them."""

    def __init__(self, *, feature: str, extra: str) -> None:
        self.feature = feature
        self.extra = extra
        super().__init__(f"{feature} needs packages that are not installed; pip install 'mainspring[{extra}]'")


class EngineUnavailable(MainspringError):
    """The store cannot be used, or did not carry out an operation; the message says why.

    SQLite has stored nothing of the operation. NATS may have stored it, if no server has answered.
    """

    def __init__(self, *, engine: str, reason: str, remedy: str) -> None:
        self.engine = engine
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{engine}: {reason}; {remedy}")


class StoreCorrupt(EngineUnavailable):
    """A SQLite file is not a Mainspring database, or is damaged."""


class StoreTooNew(EngineUnavailable):
    """A newer version of Mainspring wrote this SQLite file, and this version cannot read it."""


class StoreMoved(EngineUnavailable):
    """The jobs of this store were moved to another store, or are being moved, so it must not be used."""

    def __init__(self, *, engine: str, reason: str, remedy: str, target: str) -> None:
        self.target = target
        super().__init__(engine=engine, reason=reason, remedy=remedy)


class StoreReplaced(EngineUnavailable):
    """The file of the store was removed, replaced, renamed or truncated while this process used it.

    The process must be restarted: until then, every call raises this error, also if the file comes back.
    """
