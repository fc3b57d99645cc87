"""Submits jobs: checks and encodes the arguments on the caller's thread, and returns when the jobs are stored.

The options of the submit and the options of the handler determine keys, limits, expiry and the follow-up job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from mainspring.errors import (
    ArgumentsTooLarge,
    DuplicateJob,
    LimitExceeded,
    MainspringError,
    PartialSubmit,
    RefusedByStore,
)
from mainspring.jobs.commands import Arrangement, PutLimit, PutRedaction
from mainspring.jobs.context import current_headers
from mainspring.jobs.engine import Capability, Engine
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.ids import JobIds, short_key
from mainspring.jobs.io_layer import ARRANGE, MAX_BYTES, SUBMIT, BlockingReply, IoLayer, Operation
from mainspring.jobs.job_policies import inheritable, policy_headers
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.middleware import Middlewares, Submit
from mainspring.jobs.off_loop import OffLoop
from mainspring.jobs.policies import Unique, names_of
from mainspring.jobs.records import Conflict, ConflictKind, FollowUp, JobRecord, NewJob, Query, UniqueKey
from mainspring.jobs.request_records import RequestIds
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.submit_options import SubmitOptions
from mainspring.jobs.timestamps import (
    LAST_INSTANT,
    MICROSECONDS,
    to_microseconds,
)

if TYPE_CHECKING:
    from mainspring.jobs.signing import JobSigner


class JobTemplate:
    """The values that all jobs of one submit have in common. The method `job` makes one of these jobs."""

    def __init__(
        self, handler: Handler, options: SubmitOptions, limits: LimitRegistry, now: int, latest: int | None = None
    ) -> None:
        own = handler.options
        self._handler = handler
        self._options = options
        self.now = now
        self.due = options.due(now, latest)
        self.queue = options.queue or own.queue
        self.priority = int(own.priority if options.priority is None else options.priority)
        self._families = limits.families(handler, self.queue)
        self.unique: Unique | None = options.unique or own.unique  # type: ignore[assignment]
        if handler.redacted:
            handler.require_unique(self.unique)
        ambient = current_headers()
        self.headers: dict[str, str] = {}
        if ambient or options.headers:
            self.headers = {**inheritable(ambient), **(options.headers or {})}
        if options.retry is not None or options.timeout is not None:
            require_policies(handler, options)
            self.headers |= policy_headers(options.retry, options.timeout)
        then = options.then or own.then
        self._follow_up = None if then is None else then.follow_up()
        expires = handler.expires if options.expires is None else options.expires
        self._expires = None if expires is None else min(LAST_INSTANT, self.due + expires)
        self._steps_aside = own.steps_aside if options.steps_aside is None else options.steps_aside
        policies = (self.unique, self._follow_up, self._expires, options.sequence)
        keyed = self._families or handler.sequence_by or handler.search_by
        self._is_plain = not keyed and policies == (None, None, None, None)

    @property
    def needs_arguments(self) -> bool:
        """Whether the unique key, the sequence, the limits or the search keys of a job depend on its arguments."""
        return self.unique is not None or bool(self._families or self._handler.search_by) or self._is_keyed

    def job(self, job_id: str, payload: bytes, given: Mapping[str, Any]) -> NewJob:
        """Make one job with this id and encoded arguments.

        `given` has its arguments by name; it may be empty if `needs_arguments` is False.
        """
        handler = self._handler
        if self._is_plain and not self.headers:
            codec = handler.arguments.codec
            return NewJob(job_id, handler.name, self.queue, self.priority, self.due, payload, codec)
        return NewJob(
            job_id,
            handler.name,
            self.queue,
            self.priority,
            self.due,
            payload,
            handler.arguments.codec,
            sequence=self._sequence(given),
            steps_aside=self._steps_aside,
            limits=tuple(family.bucket(handler, given) for family in self._families),
            unique=None if self.unique is None else self._unique_key(self.unique, given),
            expires=self._expires,
            headers=self.headers or None,
            follow_up=self._follow_up,
            search=handler.search_keys(given) if handler.search_by else (),
        )

    def jobs(self, ids: list[str], payloads: list[bytes]) -> list[NewJob]:
        """Make one job for each id and encoded arguments. Call it only if `needs_arguments` is False."""
        model = self.job("", b"", {})
        if not model.is_plain:
            return [
                replace(model, id=job_id, payload=payload) for job_id, payload in zip(ids, payloads, strict=True)
            ]
        kind, queue, priority, due, codec = model.type, model.queue, model.priority, model.due, model.codec
        return [
            NewJob(job_id, kind, queue, priority, due, payload, codec)
            for job_id, payload in zip(ids, payloads, strict=True)
        ]

    @property
    def _is_keyed(self) -> bool:
        return self._options.sequence is None and bool(self._handler.sequence_by)

    def _sequence(self, given: Mapping[str, Any]) -> str | None:
        if not self._is_keyed:
            return self._options.sequence
        return short_key(self._handler.arguments.key(given, self._handler.sequence_by))

    def _unique_key(self, policy: Unique, given: Mapping[str, Any]) -> UniqueKey:
        handler = self._handler
        names = names_of(policy.by)
        parts = [handler.name]
        if policy.key is not None:
            parts.append(policy.key)
        if names or policy.key is None:
            parts.append(handler.arguments.key(given, names or handler.arguments.names))
        key = short_key(": ".join(parts))
        window = None if policy.window is None else to_microseconds(policy.window, "window")
        return UniqueKey(key, policy.conflicting_states, window, policy.on_conflict == "replace")


def require_policies(handler: Handler, options: SubmitOptions) -> None:
    """Raise `ValueError` if the `retry` or `timeout` of a submit contradicts the options of the handler."""
    if options.timeout is not None and handler.options.batch is not None:
        raise ValueError(
            f"{handler.name} is called with many jobs at once, so that one of them cannot have timeout=; leave it "
            "out, or set it with @app.job(timeout=...)"
        )
    if options.timeout is not None and (handler.soft_timeout or 0) >= options.timeout:
        raise ValueError(
            f"timeout must be longer than the soft_timeout of {handler.name}, {handler.options.soft_timeout!r}, "
            f"got {options.timeout / MICROSECONDS:g} s"
        )
    if options.retry is not None and handler.options.at_most_once and options.retry.max_attempts > 1:
        raise ValueError(
            f"a job of {handler.name} starts at most once, and so cannot have {options.retry!r}; leave retry= out"
        )


def describe_follow_up(
    handler: Handler, options: SubmitOptions, limits: LimitRegistry, bound: Mapping[str, Any] | None = None
) -> FollowUp:
    """Return the description of a follow-up job, which is stored with the job before it.

    The first parameter of its handler that is not in `bound` gets the result of that job. Raises `TypeError` if
    more than one parameter would have no value, and `ValueError` for an option that a follow-up job cannot have.
    """
    own = handler.options
    bound = bound or {}
    names = [name for name in handler.arguments.names if name not in bound]
    _require_single(handler, [name for name in handler.arguments.required if name not in bound])
    _require_possible(handler, options)
    then = options.then or own.then
    queue = options.queue or own.queue
    return FollowUp(
        handler.name,
        queue,
        int(own.priority if options.priority is None else options.priority),
        options.delay or 0,
        names[0] if names else None,
        options.sequence,
        own.steps_aside if options.steps_aside is None else options.steps_aside,
        handler.expires if options.expires is None else options.expires,
        tuple((family.name, family.by) for family in limits.families(handler, queue)),
        None if then is None else then.follow_up(),
        handler.arguments.encode_some(bound) if bound else None,
        handler.arguments.codec if bound else JsonSerializer.name,
    )


def _require_possible(handler: Handler, options: SubmitOptions) -> None:
    """Raise `ValueError` if an option of the submit or of the handler is one that a follow-up job cannot have."""
    given: dict[str, Any] = {"id": options.id, "at": options.at, "headers": options.headers}
    given |= {"retry": options.retry, "timeout": options.timeout}
    given["unique"] = options.unique or handler.options.unique
    given["sequence_by"] = handler.options.sequence_by
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{handler.name} has {name}={value!r}, which a job of then= or @app.on_dead_letter cannot have; "
                f"leave {name}= out, or submit {handler.name} at the end of another handler"
            )


def _require_single(handler: Handler, required: Iterable[str]) -> None:
    count = len(tuple(required))
    if count > 1:
        raise TypeError(
            f"{handler.name} cannot follow another job: it has {count} parameters without a default, and gets one "
            "argument only, the result of the first job; pass the others with bind(...)"
        )


MAX_PAYLOAD = 1_048_576
CHUNK = 5_000  # the largest number of jobs in one call of the engine
MAX_ATOMIC = 268_435_456  # bytes of arguments in an atomic submit
CHUNK_FOUND = 500  # how many jobs are looked up at once
CHUNKS_IN_FLIGHT = 2  # one chunk is committed while the next chunk is prepared


_NO_MIDDLEWARE: AbstractContextManager[Submit | None] = nullcontext()


class StoredId(NamedTuple):
    """The answer to a submit: the id of the job, and whether this submit has stored it."""

    id: str
    is_new: bool
    """False if `id` is that of an existing job with the same unique key, so that no job was added."""


class JobCall(NamedTuple):
    """One job of `submit_mixed`, before it is checked: its handler, its options and its arguments."""

    handler: Handler
    options: SubmitOptions
    positional: tuple[Any, ...]
    named: Mapping[str, Any]


class PreparedJob(NamedTuple):
    """One job of `submit_mixed`, checked and encoded, but not stored yet."""

    job: NewJob
    must_be_new: bool
    """Whether it is an error if another job has the same unique key (`on_conflict="raise"`)."""
    is_own: bool = False
    """Whether its id was derived from an idempotency key.

    Then only an earlier attempt of the request can have used it.
    """


class MixedSubmit(NamedTuple):
    """The answer to `submit_mixed`. The numbers in it are indices in the list of submitted jobs, from 0."""

    ids: list[str | None]
    """The ids in order; None for jobs that were not stored.

    Where a unique key exists, the id of the existing job.
    """
    existing: set[int]
    """The indices of jobs that were not stored because an existing job has their unique key."""
    failed: dict[int, MainspringError]
    """The indices of jobs that were refused, each with the error."""


class Submission:
    """Checks, encodes and signs new jobs, and stores them in the engine."""

    def __init__(
        self,
        engine: Engine,
        io: IoLayer,
        *,
        registry: HandlerRegistry,
        limits: LimitRegistry,
        middlewares: Middlewares,
        max_payload: int,
        off_loop: OffLoop,
        signer: JobSigner | None = None,
    ) -> None:
        self._engine = engine
        self._off_loop = off_loop  # runs calls that coroutines wait for
        self._signer = signer  # None if jobs are not signed
        self._io = io
        self._registry = registry
        self._limits = limits
        self._middlewares = middlewares
        self._max_payload = max_payload
        self._ids = JobIds()
        self._stored_version = 0  # of the declarations that this object has stored
        self.after_submit: Callable[[], None] = _nothing  # called on the caller's thread when its jobs are stored

    def submit(
        self, handler: Handler, options: SubmitOptions, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> str:
        """Store one job durably and return its id, or the id of the existing job with the same unique key.

        Raises `DuplicateJob` if the id exists, or if the unique key exists and has `on_conflict="raise"`.
        """
        if self._limits.version + self._registry.declaration_version != self._stored_version:
            self.store_declarations()
        template = self._template(handler, options)
        with self._around(handler, template, 1) as submit:
            job = self._signed(self._make(handler, options, template, positional, named))
            (conflict,) = self._io.call(SUBMIT, (job,), size=len(job.payload))
            job_id = _resolve(conflict, job, template.unique)
            if submit is not None:
                submit.ids = (job_id,)
        self.after_submit()
        return job_id

    async def submit_async(
        self, handler: Handler, options: SubmitOptions, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> str:
        """Store one job and return its id as `submit` does, without blocking the event loop."""
        return (await self.store_async(handler, options, positional, named)).id

    async def store_async(
        self,
        handler: Handler,
        options: SubmitOptions,
        positional: tuple[Any, ...],
        named: Mapping[str, Any],
        ids: RequestIds | None = None,
    ) -> StoredId:
        """Store one job as `submit_async` does, and return its id and whether it is new.

        With `ids`, the job gets the next of these ids, unless the options have one. If a job with this id exists,
        an earlier attempt of the same request has stored it: then it counts as new, and nothing is stored.
        """
        own_id = None
        if ids is not None and options.id is None:
            (own_id,) = ids.take()
            options = replace(options, id=own_id)
        if self._limits.version + self._registry.declaration_version != self._stored_version:
            await self._off_loop.write(self.store_declarations)
        template = self._template(handler, options)
        with self._around(handler, template, 1) as submit:
            job = self._signed(self._make(handler, options, template, positional, named))
            (conflict,) = await self._io.call_async(SUBMIT, (job,), size=len(job.payload))
            if conflict is not None and conflict.existing_id == own_id:
                conflict = None
            job_id = _resolve(conflict, job, template.unique)
            if submit is not None:
                submit.ids = (job_id,)
        self.after_submit()
        return StoredId(job_id, is_new=conflict is None)

    def submit_many(
        self, handler: Handler, options: SubmitOptions, arguments: Iterable[Any], *, atomic: bool
    ) -> list[str]:
        """Store many jobs of one type and return their ids, in order.

        The arguments of all jobs are checked before any job is stored. With `atomic`, all jobs are stored or none.
        Otherwise raises `PartialSubmit`, which says which jobs were stored, if the store fails at one of several
        chunks, or if a unique key with `on_conflict="raise"` exists. With another `on_conflict`, the id of the
        existing job stands for a job with the same unique key.
        """
        if options.id is not None:
            raise ValueError(f"submit_many() makes the ids itself, got id={options.id!r}; leave id= out")
        if self._limits.version + self._registry.declaration_version != self._stored_version:
            self.store_declarations()
        template = self._template(handler, options)
        if atomic:
            self._require_atomic()
        if atomic and template.unique is not None and template.unique.on_conflict == "raise":
            raise ValueError("atomic=True and on_conflict='raise' contradict each other; use on_conflict='return'")
        calls: Iterable[Any] = arguments
        given: list[dict[str, Any]] | None = None
        if template.needs_arguments:
            given = [handler.arguments.bind_item(call) for call in arguments]
            calls = given
        payloads = handler.arguments.encode_many(calls)
        self.check_size(handler.name, max(payloads, key=len, default=b""))
        if atomic:
            _check_atomic(payloads)
        with self._around(handler, template, len(payloads), is_bulk=True) as submit:
            jobs = self._make_many(template, payloads, given)
            if self._signer is not None:
                jobs = self._signer.sign_all(jobs)
            conflicts = self._store([jobs] if atomic else list(_chunks(jobs)))
            if submit is not None:
                submit.ids = _stored_ids(jobs, conflicts)
        self.after_submit()
        return _ids_of(jobs, conflicts, template.unique)

    def prepare(self, call: JobCall, own_id: str | None = None) -> PreparedJob:
        """Check and encode one job for `submit_mixed`.

        `own_id` is the job's id, derived from an idempotency key (see `RequestIds`). `own_id` is not used if the
        call gives an id.
        """
        is_own = own_id is not None and call.options.id is None
        options = replace(call.options, id=own_id) if is_own else call.options
        template = self._template(call.handler, options)
        job = self._make(call.handler, options, template, call.positional, call.named)
        unique = template.unique
        must_be_new = unique is not None and unique.on_conflict == "raise"
        return PreparedJob(job, must_be_new=must_be_new, is_own=is_own)

    def submit_mixed(
        self, prepared: Iterable[PreparedJob], *, atomic: bool, is_resumed: bool = False
    ) -> MixedSubmit:
        """Store jobs of any types in order. All of them are read from `prepared` before the first one is stored.

        With `atomic`, all are stored in one transaction; otherwise in chunks. If the store fails at the first
        chunk, its error is raised; at a later one, the remaining jobs are in `failed` with that error. With
        `is_resumed`, an earlier attempt of the same request may have stored some of the jobs: they count as
        stored. Another job that conflicts with an existing one raises no error: see `MixedSubmit`.
        """
        self.store_declarations()
        if atomic:
            self._require_atomic()
        ready = list(prepared)
        groups: dict[tuple[str, str], Submit] = {}
        if not self._middlewares.is_empty:
            for job, *_ in ready:
                new = Submit(job.type, job.queue, 0, {}, is_bulk=True)
                groups.setdefault((job.type, job.queue), new).count += 1
        with ExitStack() as stack:
            for group in groups.values():
                stack.enter_context(self._middlewares.submitting(group))
            jobs = [_with_headers(job, groups.get((job.type, job.queue))) for job, *_ in ready]
            if self._signer is not None:
                jobs = self._signer.sign_all(jobs)
            result = self._store_in_order(ready, [jobs] if atomic else list(_chunks(jobs)))
            if is_resumed:
                self._find_stored(jobs, result)
            for pair, group in groups.items():
                stored = zip(jobs, result.ids, strict=True)
                group.ids = [job_id for job, job_id in stored if job_id and (job.type, job.queue) == pair]
        self.after_submit()
        return result

    def _require_atomic(self) -> None:
        if Capability.ATOMIC_BATCH not in self._engine.capabilities:
            raise RefusedByStore(
                engine=self._engine.description,
                reason="this store cannot store many jobs all or none (atomic=True)",
                remedy="submit without atomic=True, or use a SQLite store",
            )

    def _find_stored(self, jobs: list[NewJob], result: MixedSubmit) -> None:
        """Change the refusals of a result to successes for jobs that an earlier attempt of the request has stored.

        Such a job was refused because its id exists, and the existing job has its type and arguments.
        """
        failed = {
            error.existing_id: place
            for place, error in result.failed.items()
            if isinstance(error, DuplicateJob) and error.existing_id == jobs[place].id
        }
        ids = list(failed)
        for start in range(0, len(ids), CHUNK_FOUND):
            for record in self._engine.find(Query(ids=tuple(ids[start : start + CHUNK_FOUND]))).records:
                place = failed[record.id]
                if (record.type, record.payload) == (jobs[place].type, jobs[place].payload):
                    result.ids[place] = record.id
                    del result.failed[place]

    def _store_in_order(self, ready: list[PreparedJob], chunks: list[list[NewJob]]) -> MixedSubmit:
        result = MixedSubmit([None] * len(ready), set(), {})
        place = 0
        for number, chunk in enumerate(chunks):
            try:
                conflicts: list[Conflict | None] = self._io.call(SUBMIT, chunk, size=_size(chunk))
            except MainspringError as error:
                if number == 0:
                    raise
                result.failed.update(dict.fromkeys(range(place, len(ready)), error))
                return result
            for job, conflict in zip(chunk, conflicts, strict=True):
                is_stored_before = ready[place].is_own and conflict is not None and conflict.existing_id == job.id
                if conflict is None or is_stored_before:
                    result.ids[place] = job.id
                elif conflict.kind is ConflictKind.ID or ready[place].must_be_new:
                    key = None if conflict.kind is ConflictKind.ID or job.unique is None else job.unique.key
                    result.failed[place] = DuplicateJob(existing_id=conflict.existing_id, key=key)
                else:
                    result.ids[place] = conflict.existing_id
                    result.existing.add(place)
                place += 1
        return result

    def store_declarations(self) -> None:
        """Store the declared submit quotas and redacted parameters, unless this object has stored them already.

        This method runs before a submit, so that quotas apply also without a worker, and that every process that
        reads a job finds its redacted parameters. If limits admit jobs at their submit, declared limits that the
        store does not have are stored, too. A limit that the store has keeps its value until a worker starts.
        """
        version = self._limits.version + self._registry.declaration_version
        if version != self._stored_version:
            declarations = self._declarations()
            if declarations:
                self._io.call(ARRANGE, declarations)
            self._stored_version = version

    def _declarations(self) -> list[Arrangement]:
        """Return the quotas and redacted parameters that this process declares, and limits that the store lacks.

        Limits are included only if the engine admits jobs at their submit.
        """
        redactions = (PutRedaction(*each) for each in self._registry.redacted().items())
        limits: list[PutLimit] = []
        if Capability.ADMITS_AT_SUBMIT in self._engine.capabilities:
            limits = self._limits.puts(self._registry.all())
        if limits:
            stored = {limit.family for limit in self._engine.limits()}
            limits = [limit for limit in limits if limit.family not in stored]
        return [*self._limits.quotas(), *redactions, *limits]

    def _store(self, chunks: list[list[NewJob]]) -> list[Conflict | None]:
        answers: list[BlockingReply[Any]] = []
        conflicts: list[Conflict | None] = []
        done = 0
        for chunk in chunks:
            if len(answers) - done >= CHUNKS_IN_FLIGHT:
                conflicts += self._confirm(chunks, answers, done)
                done += 1
            answers.append(self._io.make_reply())
            self._io.dispatch(Operation(SUBMIT, chunk, answers[-1], size=_size(chunk)))
        for place in range(done, len(answers)):
            conflicts += self._confirm(chunks, answers, place)
        return conflicts

    def _confirm(
        self, chunks: list[list[NewJob]], answers: list[BlockingReply[Any]], place: int
    ) -> list[Conflict | None]:
        try:
            return answers[place].get()  # type: ignore[no-any-return]
        except MainspringError as error:
            raise self._partial(chunks, answers, place, error) from error

    def _partial(
        self, chunks: list[list[NewJob]], answers: list[BlockingReply[Any]], place: int, error: MainspringError
    ) -> MainspringError:
        if len(chunks) == 1:
            return error
        stored = set(range(place))
        for later in range(place + 1, len(answers)):  # later chunks were sent already, and may succeed
            try:
                answers[later].get()
            except MainspringError:
                continue
            stored.add(later)
        done = [job.id for number, chunk in enumerate(chunks) if number in stored for job in chunk]
        failed = [job.id for number, chunk in enumerate(chunks) if number not in stored for job in chunk]
        return PartialSubmit(done=done, failed=failed, cause=str(error))

    def _around(
        self, handler: Handler, template: JobTemplate, count: int, *, is_bulk: bool = False
    ) -> AbstractContextManager[Submit | None]:
        """Return the context manager that calls the middleware around a submit; it does nothing without
        middleware.
        """
        if self._middlewares.is_empty:
            return _NO_MIDDLEWARE
        return self._with_middleware(
            Submit(handler.name, template.queue, count, template.headers, is_bulk=is_bulk)
        )

    @contextmanager
    def _with_middleware(self, submit: Submit) -> Iterator[Submit]:
        with self._middlewares.submitting(submit):
            yield submit

    def _template(self, handler: Handler, options: SubmitOptions) -> JobTemplate:
        latest = self._engine.latest() if options.delay else None
        return JobTemplate(handler, options, self._limits, self._engine.now(), latest)

    def _make(
        self,
        handler: Handler,
        options: SubmitOptions,
        template: JobTemplate,
        positional: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> NewJob:
        given = handler.arguments.bind(positional, named)
        payload = handler.arguments.encode_bound(given)
        self.check_size(handler.name, payload)
        return template.job(options.id or self._ids.make(template.now)[0], payload, given)

    def _make_many(
        self, template: JobTemplate, payloads: list[bytes], given: list[dict[str, Any]] | None
    ) -> list[NewJob]:
        ids = self._ids.make(self._engine.now(), len(payloads))
        if given is not None:
            return [template.job(*parts) for parts in zip(ids, payloads, given, strict=True)]
        return template.jobs(ids, payloads)

    def _signed(self, job: NewJob) -> NewJob:
        return job if self._signer is None else self._signer.sign(job)

    def check_size(self, handler: str, payload: bytes) -> None:
        """Raise `ArgumentsTooLarge` if the encoded arguments of a job exceed `max_payload` bytes."""
        if len(payload) > self._max_payload:
            raise ArgumentsTooLarge(handler=handler, size=len(payload), limit=self._max_payload)

    def is_same(self, record: JobRecord, call: JobCall) -> bool:
        """Return whether a stored job has the job type and the encoded arguments of a call."""
        arguments = call.handler.arguments
        payload = arguments.encode_bound(arguments.bind(call.positional, call.named))
        return (record.type, record.payload) == (call.handler.name, payload)

    def new_id(self) -> str:
        """Make the id of a new job from the time of the engine."""
        return self._ids.make(self._engine.now())[0]


def _with_headers(job: NewJob, group: Submit | None) -> NewJob:
    """Return a job with the headers that the middleware has added to its submit. The job's own headers win."""
    return (
        job
        if group is None or not group.headers
        else replace(job, headers={**group.headers, **(job.headers or {})})
    )


def _check_atomic(payloads: list[bytes]) -> None:
    size = sum(map(len, payloads))
    if size > MAX_ATOMIC:
        raise LimitExceeded(
            what="the arguments of this atomic submit, in bytes,",
            size=size,
            limit=MAX_ATOMIC,
            remedy="submit in parts, or without atomic=True",
        )


def _chunks(jobs: list[NewJob]) -> Iterator[list[NewJob]]:
    """Divide the jobs of a bulk submit into chunks of at most `CHUNK` jobs and, if possible, `MAX_BYTES` of
    arguments.

    One call of the engine stores a chunk.
    """
    chunk: list[NewJob] = []
    size = 0
    for job in jobs:
        if len(chunk) == CHUNK or (chunk and size + len(job.payload) > MAX_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(job)
        size += len(job.payload)
    if chunk:
        yield chunk


def _size(jobs: list[NewJob]) -> int:
    return sum(len(job.payload) for job in jobs)


def _resolve(conflict: Conflict | None, job: NewJob, unique: Unique | None) -> str:
    """Return the id of the job that was stored, or of the existing job with the same unique key.

    Raises `DuplicateJob` if a job with the same id exists, or if the unique key has `on_conflict="raise"`.
    """
    if conflict is None:
        return job.id
    if conflict.kind is ConflictKind.ID:
        raise DuplicateJob(existing_id=conflict.existing_id)
    if unique is not None and unique.on_conflict == "raise":
        key = None if job.unique is None else job.unique.key
        raise DuplicateJob(existing_id=conflict.existing_id, key=key)
    return conflict.existing_id


def _stored_ids(jobs: list[NewJob], conflicts: list[Conflict | None]) -> list[str]:
    return [
        job.id if conflict is None else conflict.existing_id for job, conflict in zip(jobs, conflicts, strict=True)
    ]


def _ids_of(jobs: list[NewJob], conflicts: list[Conflict | None], unique: Unique | None) -> list[str]:
    ids = _stored_ids(jobs, conflicts)
    if unique is not None and unique.on_conflict == "raise" and any(conflicts):
        raise PartialSubmit(
            done=[job.id for job, conflict in zip(jobs, conflicts, strict=True) if conflict is None],
            failed=[job.id for job, conflict in zip(jobs, conflicts, strict=True) if conflict is not None],
            cause="other jobs with their unique keys exist already",
            remedy="on_conflict='return' returns the ids of the existing jobs instead",
        )
    return ids


def _nothing() -> None:
    return None
