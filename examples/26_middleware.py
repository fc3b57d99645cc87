"""Around every submit and every attempt: a trace that follows a request through all jobs that it causes."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from uuid import uuid4

from mainspring import JobContext, Mainspring, Middleware, Submit
from mainspring.testing import inline

app = Mainspring("memory://")
trace: ContextVar[str] = ContextVar("trace", default="")
lock = Lock()
log: list[str] = []


class Tracing(Middleware):
    """Carries the trace of the submitter to wherever the job runs."""

    @contextmanager
    def submitting(self, submit: Submit) -> Iterator[None]:
        submit.headers.setdefault("trace", trace.get() or uuid4().hex)
        yield

    @contextmanager
    def attempting(self, job: JobContext) -> Iterator[None]:
        token = trace.set(job.headers["trace"])
        try:
            yield  # what the handler raises goes through here
        finally:
            with lock:
                log.append(f"{job.headers['trace']}: {job.type.partition('.')[2]}")
            trace.reset(token)


app.middleware(Tracing())


@app.job
async def send_mail(order: int) -> str:
    return f"order {order} is on its way ({trace.get()})"  # the same trace, one job further


@app.job
def ship(order: int) -> None:
    send_mail.submit(order)  # headers are handed on to jobs that are submitted in here


with inline(app):
    trace.set("request-1")  # as a web framework would
    ship.submit(42)

print("\n".join(log))
assert sorted(log) == ["request-1: send_mail", "request-1: ship"]  # the mail may go out before ship() has ended
