"""Traces and metrics by OpenTelemetry: `app.middleware(OpenTelemetryMiddleware())`.

It needs the extra: `pip install 'mainspring[otel]'`. That installs the API of OpenTelemetry only. The application
chooses the SDK and the exporter.

- A submit is a PRODUCER span. The headers of its jobs contain its context, in the format of W3C Trace Context.
- An attempt is a CONSUMER span with a link to that span. With `same_trace=True` it is a child of that span.
- A follow-up job is linked to the attempt that caused it; a job of a schedule to the span of its firing; a job of
  a dead-letter handler, a replay and a retry to the submit of the failed job.
- In a child process, the span of the attempt is current, too, so spans of the handler are its children.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from mainspring.clock import SystemClock
from mainspring.jobs.context import JobContext, current_batch, current_headers, runs_batch
from mainspring.jobs.dead_letter_jobs import MARK
from mainspring.jobs.middleware import AttemptEnd, Middleware, Submit
from mainspring.jobs.retry import RetryLater
from mainspring.jobs.trace_fields import TRACEPARENT
from mainspring.jobs.worker.outcomes import RemoteError
from mainspring.monitoring import conventions as names

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        f"OpenTelemetryMiddleware needs the API of OpenTelemetry, which cannot be imported ({error}); "
        "pip install 'mainspring[otel]'"
    ) from error

SCOPE = "mainspring"
"""The name of the instrumentation scope of all spans and metrics."""
TRACESTATE = "tracestate"
BAGGAGE = "baggage"
SUBMIT = "submit"
PROCESS = "process"


class _OpenSpan(NamedTuple):
    """The span of an attempt that has not ended, and when it began."""

    span: Span
    began_ns: int


class OpenTelemetryMiddleware(Middleware):
    """Makes spans and metrics of submits and attempts: `app.middleware(OpenTelemetryMiddleware())`.

    - `same_trace`: let the attempts of a job be children of its submit, in the same trace. By default, each
      attempt is a trace of its own with a link to the submit. Calls of batch handlers always have links.
    - `baggage`: store the baggage of the submitter in the headers of the jobs, and make it current in handlers.
    - `span_names`: whether the names of spans contain the queue (`process orders`) or the job type.
    - `tracer_provider`: makes the spans, instead of the global provider.
    - `meter_provider`: makes the metrics, instead of the global provider.
    """

    def __init__(
        self,
        *,
        same_trace: bool = False,
        baggage: bool = False,
        span_names: Literal["queue", "type"] = "queue",
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        if span_names not in ("queue", "type"):
            raise ValueError(f"span_names must be 'queue' or 'type', got {span_names!r}")
        self._same_trace = same_trace
        self._by_type = span_names == "type"
        self._trace_context = TraceContextTextMapPropagator()
        self._baggage = W3CBaggagePropagator() if baggage else None
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._instruments = _Instruments(metrics.get_meter(SCOPE, meter_provider=meter_provider))
        self._clock = SystemClock()
        self._open: dict[JobContext, _OpenSpan] = {}  # by the first job of the call

    # -- submits

    @contextmanager
    def submitting(self, submit: Submit) -> Iterator[None]:
        """Wrap a submit in a PRODUCER span, and store the span's context in the headers of the jobs.

        If the submit's own headers have a trace context, they keep it, and the span gets a link to it.
        """
        custom = self._custom_context(submit)
        span = self._start_submit(submit, [] if custom is None else [Link(custom)])
        token = context.attach(trace.set_span_in_context(span))
        began = self._clock.monotonic_ns()
        error_type = None
        try:
            if custom is None:
                self._inject(span, submit.headers)
            if self._baggage is not None:
                self._baggage.inject(submit.headers)
            yield
        except BaseException as error:
            error_type = _name_of(error)
            _record(span, error, error_type, str(error))
            raise
        finally:
            context.detach(token)
            self._end_submit(span, submit, began, error_type)

    @contextmanager
    def scheduling(self, submit: Submit) -> Iterator[None]:
        """Wrap the submit of a schedule's jobs in a PRODUCER span, which does not become the current span."""
        span = self._start_submit(submit, [])
        span.set_attribute(names.SCHEDULE, submit.schedule or "")
        began = self._clock.monotonic_ns()
        error_type = None
        try:
            self._inject(span, submit.headers)
            yield
        except BaseException as error:
            error_type = _name_of(error)
            _record(span, error, error_type, str(error))
            raise
        finally:
            if not submit.ids and error_type is None:
                span.set_attribute(names.OUTCOME, "not stored")  # another worker has fired the occurrence
            self._end_submit(span, submit, began, error_type)

    def _start_submit(self, submit: Submit, links: list[Link]) -> Span:
        attributes = _attributes(SUBMIT, "send", submit.queue, submit.type)
        if submit.is_bulk or submit.count > 1:
            attributes[names.MESSAGE_COUNT] = submit.count
        name = self._span_name(SUBMIT, submit.queue, submit.type)
        return self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes, links=links)

    def _end_submit(self, span: Span, submit: Submit, began_ns: int, error_type: str | None) -> None:
        if len(submit.ids) == 1 and not submit.is_bulk:
            span.set_attribute(names.MESSAGE_ID, submit.ids[0])
        span.end()
        if submit.schedule is not None and not submit.ids and error_type is None:
            return
        attributes = _with_error(_metric_attributes(SUBMIT, submit.queue, submit.type), error_type)
        self._instruments.sent.add(submit.count, attributes)
        self._instruments.submit_seconds.record(
            self._seconds_since(began_ns), {**attributes, names.OPERATION_TYPE: "send"}
        )

    def _custom_context(self, submit: Submit) -> SpanContext | None:
        """Return the trace context that the caller of a submit has put into its headers; None if there is none.

        A context that the submit inherits from the headers of the running job does not count.
        """
        given = submit.headers.get(TRACEPARENT)
        if given is None or given == current_headers().get(TRACEPARENT):
            return None
        found = self._extract(submit.headers)
        return found if found.is_valid else None

    # -- attempts

    @contextmanager
    def attempting(self, job: JobContext) -> Iterator[None]:
        """Start the CONSUMER span of an attempt and make it current while the handler runs.

        Add the ids of the span to the log fields of the jobs. `attempted` ends the span.
        """
        jobs = current_batch()
        span = self._start_attempt(job, jobs, is_batch=runs_batch())
        self._open[job] = _OpenSpan(span, self._clock.monotonic_ns())
        found = span.get_span_context()
        if found.is_valid:
            for one in jobs:
                one.add_log_fields(trace_id=f"{found.trace_id:032x}", span_id=f"{found.span_id:016x}")
        base = context.get_current() if self._baggage is None else self._baggage.extract(job.headers)
        token = context.attach(trace.set_span_in_context(span, base))
        try:
            yield
        finally:
            context.detach(token)

    def _start_attempt(self, job: JobContext, jobs: Sequence[JobContext], *, is_batch: bool) -> Span:
        attributes = _attributes(PROCESS, PROCESS, job.queue, job.type)
        if is_batch:
            attributes[names.MESSAGE_COUNT] = len(jobs)
        else:
            attributes |= {names.MESSAGE_ID: job.id, names.ATTEMPT: job.attempt}
            if MARK in job.headers:
                attributes[names.DEAD_LETTER] = job.headers[MARK]
        found = [(one, self._extract(one.headers)) for one in jobs]
        links = [Link(origin, {names.MESSAGE_ID: one.id}) for one, origin in found if origin.is_valid]
        # An empty context makes a new trace. The current span, if any, belongs to a caller whose thread was used.
        parent = Context()
        if self._same_trace and not is_batch:
            parent = self._trace_context.extract(job.headers, Context())
        return self._tracer.start_span(
            self._span_name(PROCESS, job.queue, job.type),
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )

    def attempted(self, ends: Sequence[AttemptEnd]) -> None:
        """End the span of an attempt with its outcome, count the attempt, and link follow-up jobs to the span.

        Do nothing if `attempting` was not called for the attempt.
        """
        attempt = self._open.pop(ends[0].job, None)
        if attempt is None:  # another middleware failed before `attempting`
            return
        span = attempt.span
        for end in ends:
            if end.follow_up_headers is not None:
                self._inject(span, end.follow_up_headers)
        if span.is_recording():
            _describe(span, ends)
        span.end()
        self._count(ends, self._seconds_since(attempt.began_ns))

    def _count(self, ends: Sequence[AttemptEnd], seconds: float) -> None:
        for end in ends:
            attributes = _metric_attributes(PROCESS, end.job.queue, end.job.type)
            self._instruments.consumed.add(1, _with_error(attributes, _error_type(end)))
        first = ends[0].job
        failed = next((kind for end in ends if (kind := _error_type(end)) is not None), None)
        self._instruments.process_seconds.record(
            seconds, _with_error(_metric_attributes(PROCESS, first.queue, first.type), failed)
        )

    # -- child processes

    def calling_child(self, job: JobContext, passed: dict[str, str]) -> None:
        """Put the context of the current span into `passed`, which goes to the child process with the job."""
        self._trace_context.inject(passed)
        if self._baggage is not None:
            self._baggage.inject(passed)

    @contextmanager
    def attempting_in_child(self, job: JobContext, passed: Mapping[str, str]) -> Iterator[None]:
        """Make the span of the attempt, which `passed` describes, current in the child process."""
        found = self._trace_context.extract(passed)
        if self._baggage is not None:
            found = self._baggage.extract(passed, found)
        token = context.attach(found)
        try:
            yield
        finally:
            context.detach(token)

    # -- both

    def _span_name(self, operation: str, queue: str, type_: str) -> str:
        return f"{operation} {type_ if self._by_type else queue}"

    def _seconds_since(self, began_ns: int) -> float:
        return (self._clock.monotonic_ns() - began_ns) / 1e9

    def _extract(self, headers: Mapping[str, str]) -> SpanContext:
        return trace.get_current_span(self._trace_context.extract(headers, Context())).get_span_context()

    def _inject(self, span: Span, headers: dict[str, str]) -> None:
        """Write the trace context of a span into headers, in place of one that the submitting job has passed on.

        Do nothing if the span has no valid context, because tracing is off.
        """
        if span.get_span_context().is_valid:
            headers.pop(TRACESTATE, None)
            self._trace_context.inject(headers, trace.set_span_in_context(span, Context()))


class _Instruments:
    """The counters and histograms of OpenTelemetry that the middleware writes to."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.sent = meter.create_counter(
            names.SENT_MESSAGES, "{message}", "Number of messages producer attempted to send to the broker."
        )
        self.consumed = meter.create_counter(
            names.CONSUMED_MESSAGES, "{message}", "Number of messages that were delivered to the application."
        )
        self.submit_seconds = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=names.DURATION_BOUNDS,
        )
        self.process_seconds = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=names.DURATION_BOUNDS,
        )


def _attributes(operation: str, kind: str, queue: str, type_: str) -> dict[str, Any]:
    return {**_metric_attributes(operation, queue, type_), names.OPERATION_TYPE: kind}


def _metric_attributes(operation: str, queue: str, type_: str) -> dict[str, str]:
    return {
        names.SYSTEM: SCOPE,
        names.OPERATION_NAME: operation,
        names.DESTINATION: queue,
        names.JOB_TYPE: type_,
    }


def _with_error(attributes: dict[str, str], error_type: str | None) -> dict[str, str]:
    return attributes if error_type is None else {**attributes, names.ERROR_TYPE: error_type}


def _describe(span: Span, ends: Sequence[AttemptEnd]) -> None:
    """Set outcome and status of a handler call on its span, and record its errors.

    For a batch, outcome and status are set only if all of its jobs have the same one.
    """
    if len({end.outcome for end in ends}) == 1:
        span.set_attribute(names.OUTCOME, ends[0].outcome)
    if len({end.status for end in ends}) == 1:
        span.set_attribute(names.JOB_STATUS, ends[0].status.value)
    recorded: list[BaseException] = []  # an exception of a batch handler fails all of its jobs
    for end in ends:
        error_type = _error_type(end)
        if error_type is not None and not any(end.error is error for error in recorded):
            _record(span, end.error, error_type, end.error_text or "")
            if end.error is not None:
                recorded.append(end.error)


def _error_type(end: AttemptEnd) -> str | None:
    """Return the value of `error.type`: `timeout`, or the class of the exception; None if nothing has failed."""
    return "timeout" if end.outcome == "timeout" else end.error_type


def _record(span: Span, error: BaseException | None, error_type: str, text: str) -> None:
    """Set the status of a span to ERROR. Record the exception, too, if there is one that is not `Retry.Later`."""
    summary = text.partition("\n")[0] or error_type
    span.set_attribute(names.ERROR_TYPE, error_type)
    span.set_status(Status(StatusCode.ERROR, summary))
    if isinstance(error, RemoteError):  # its traceback is that of the child process
        message = summary.removeprefix(f"{error_type}: ")
        span.add_event(
            names.EXCEPTION,
            {
                names.EXCEPTION_TYPE: error_type,
                names.EXCEPTION_MESSAGE: message,
                names.EXCEPTION_STACKTRACE: text,
            },
        )
    elif error is not None and not isinstance(error, RetryLater):  # a request of the handler, not an error
        span.record_exception(error)


def _name_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
