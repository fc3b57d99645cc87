"""Every call of the NATS engine ends within its timeout, whatever the server does not answer."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring import EngineUnavailable, RefusedByStore
from mainspring.engines.nats.engine import NatsEngine
from mainspring.jobs.activity_rows import ActivityBatch, ActivityCount
from mainspring.jobs.audit import AuditQuery
from mainspring.jobs.commands import CancelJob, PauseQueue, PutLimit
from mainspring.jobs.engine import Demand, Engine, Retention
from mainspring.jobs.records import (
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
    Progress,
    ProgressReport,
    Query,
    RemoteTerms,
    UniqueKey,
    WorkerInfo,
)
from mainspring.jobs.recurrence.schedule_records import Firing, Overlap
from mainspring.jobs.request_records import NewRequest, RequestEnd
from mainspring.jobs.status import JobStatus
from tests.unit.engines.silent_server import Answers, SilentStore

OWN, UNKNOWN = 5, 6
"""The numbers of a worker of this process, and of one that no server knows."""
INFO = WorkerInfo("worker", 1, ("ping",))
LEASE = Lease(1, "job", "ping", "default", 0, b"{}", "json", 1, True, 0, 0, 0, 0, 1)
LIMITED = Lease(1, "job", "ping", "default", 0, b"{}", "json", 1, True, 0, 0, 0, 0, 1, sequence="orders")
MARGIN = 0.5
"""How many seconds a call may take longer: for the pause after its last try, and for the presence of a worker."""
HOUR = 3_600_000_000
_numbers = count()


def job(**policies: object) -> NewJob:
    return NewJob(f"job-{next(_numbers)}", "ping", "default", 1, 0, b"{}", "json", **policies)  # type: ignore[arg-type]


def open_again(engine: NatsEngine) -> None:
    engine.close()
    engine.open(lambda: None)


CALLS: dict[str, list[Callable[[NatsEngine], object]]] = {
    "submit": [
        lambda engine: engine.submit([job()]),
        lambda engine: engine.submit([job() for _ in range(20)]),
        lambda engine: engine.submit([job(unique=UniqueKey("key", (JobStatus.PENDING,))), job(sequence="orders")]),
    ],
    "change": [lambda engine: engine.change([CancelJob(f"job-{number}") for number in range(20)])],
    "arrange": [lambda engine: engine.arrange([PutLimit("all", 1, None), PauseQueue("default", is_paused=True)])],
    "enroll": [
        lambda engine: engine.enroll(INFO),
        lambda engine: engine.enroll(WorkerInfo("remote", 0, ("ping",), remote=RemoteTerms("token", HOUR))),
    ],
    "renew": [lambda engine: engine.renew(OWN), lambda engine: engine.renew(UNKNOWN)],
    "announce": [lambda engine: engine.announce(OWN, INFO)],
    "leave": [lambda engine: engine.leave(OWN), lambda engine: engine.leave(UNKNOWN)],
    "take": [
        lambda engine: engine.take(OWN, [Demand(("ping",), 5, 5)], lead=1_000_000, start_lead=10_000),
        lambda engine: engine.take(UNKNOWN, [Demand(("ping",), 5, 5)], lead=0, start_lead=0),
    ],
    "spent": [lambda engine: engine.spent(["job"])],
    "start": [lambda engine: engine.start(OWN, [LEASE])],
    "settle": [
        lambda engine: engine.settle(OWN, [Outcome(LEASE, OutcomeKind.COMPLETED)]),
        lambda engine: engine.settle(OWN, [Outcome(LIMITED, OutcomeKind.COMPLETED, follow_up=job())]),
        lambda engine: engine.settle(UNKNOWN, [Outcome(LEASE, OutcomeKind.FAILED, error="no")]),
    ],
    "report": [lambda engine: engine.report(OWN, [ProgressReport(LEASE, Progress(1.0, None, None, 0))])],
    "sweep": [lambda engine: engine.sweep(OWN)],
    "leased": [lambda engine: engine.leased(UNKNOWN)],
    "workers": [lambda engine: engine.workers()],
    "backlog": [lambda engine: engine.backlog()],
    "find": [
        lambda engine: engine.find(Query(ids=("job",))),
        lambda engine: engine.find(Query(status=JobStatus.PENDING)),
    ],
    "counts": [lambda engine: engine.counts()],
    "count_up_to": [lambda engine: engine.count_up_to(Query(), 10)],
    "queues": [lambda engine: engine.queues()],
    "situation": [lambda engine: engine.situation("job")],
    "fire": [
        lambda engine: engine.fire([Firing("nightly", 1, 1, 2, 1, (job(), job()), Overlap.ALLOW, ())]),
    ],
    "schedules": [lambda engine: engine.schedules()],
    "occurrences": [lambda engine: engine.occurrences("nightly", 10)],
    "listen": [lambda engine: engine.listen(HOUR)],
    "events": [lambda engine: engine.events("1-1", 10)],
    "holds": [lambda engine: engine.holds("1-1")],
    "paused_queues": [lambda engine: engine.paused_queues()],
    "callback_pauses": [lambda engine: engine.callback_pauses()],
    "limits": [lambda engine: engine.limits()],
    "dead_letter_handlers": [lambda engine: engine.dead_letter_handlers()],
    "redactions": [lambda engine: engine.redactions()],
    "tokens": [lambda engine: engine.tokens()],
    "audit_entries": [lambda engine: engine.audit_entries(AuditQuery(limit=10))],
    "prune": [lambda engine: engine.prune(Retention(HOUR, HOUR, None))],
    "statistics": [lambda engine: engine.statistics()],
    "upcoming": [lambda engine: engine.upcoming([0, HOUR])],
    "record_activity": [
        lambda engine: engine.record_activity(
            ActivityBatch("me", 1, (ActivityCount(0, "default", "ping", "submitted", "", 0, 1),))
        )
    ],
    "activity": [lambda engine: engine.activity(0, HOUR)],
    "begin_requests": [
        lambda engine: engine.begin_requests(
            [NewRequest(caller="a", key="k", digest="d", first_id="1", owner="o", kept=HOUR, busy=1, most=5)]
        )
    ],
    "end_requests": [lambda engine: engine.end_requests([RequestEnd(caller="a", key="k", owner="o")])],
    "open": [open_again],
}
WITHOUT_REQUESTS = {"now", "latest", "unit", "close", "sign_letters", "take_notes", "backup"}


def test_every_call_of_the_protocol_is_measured() -> None:
    names = {name for name in dir(Engine) if isfunction(getattr(Engine, name)) and not name.startswith("_")}
    assert names == CALLS.keys() | WITHOUT_REQUESTS


@pytest.fixture
def make_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float], SilentStore]:
    return lambda timeout: SilentStore(monkeypatch, tmp_path, timeout)


def require_bound(
    store: SilentStore, call: Callable[[NatsEngine], object], answers: Answers, timeout: float
) -> None:
    store.server.answers = Answers.EVERYTHING
    store.engine.open(lambda: None)
    try:
        store.engine._workers._ours[OWN] = (INFO, 17)
        store.server.answers = answers
        seconds, error = store.measure(call)
    finally:
        store.engine.close()
    assert error is None or isinstance(error, EngineUnavailable | RefusedByStore)
    assert seconds <= timeout + MARGIN, (answers, seconds, error)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_ends_within_its_timeout(name: str, make_store: Callable[[float], SilentStore]) -> None:
    store = make_store(5.0)
    for call in CALLS[name]:
        for answers in Answers:
            require_bound(store, call, answers, 5.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    st.sampled_from([call for calls in CALLS.values() for call in calls]),
    st.sampled_from(Answers),
    st.floats(0.2, 60.0),
)
def test_any_timeout_bounds_any_call(
    make_store: Callable[[float], SilentStore],
    call: Callable[[NatsEngine], object],
    answers: Answers,
    timeout: float,
) -> None:
    require_bound(make_store(timeout), call, answers, timeout)
