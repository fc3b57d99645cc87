"""Permissions: with those that `mainspring nats permissions` prints, every role works and nothing is denied."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import (
    EventKind,
    Every,
    JobEvent,
    JobStatus,
    LimitExceeded,
    Priority,
    Rate,
    Reason,
    Unique,
)
from mainspring.jobs.commands import NoteTokenUses
from mainspring.jobs.engine import Demand
from mainspring.jobs.records import Lease, RemoteTerms, WorkerInfo
from mainspring.jobs.request_records import RequestEnd
from mainspring.security.permissions import TOKEN_CALLER
from mainspring.testing.conformance.requests import new_request
from tests.nats.restricted_servers import RestrictedServers, Shop, run_program
from tests.programs import program
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def submit_all_kinds(app: Shop, number: int) -> list[Any]:
    """Submit, cancel and put off jobs of every kind; return handles of those that end well.

    Each call needs a number of its own for the unique keys: a job of another call may end at any moment.
    """
    assert app.plain.after(60).submit().cancel()
    late = app.plain.after(60).submit()
    assert late.reschedule(delay=0.1)
    debounced = app.plain.options(unique=Unique(f"key-{number}", on_conflict="replace"))
    debounced.after(60).submit()
    kept = app.single.after(60).submit(number)
    assert app.single.submit(number).id == kept.id
    assert kept.cancel()
    for waiting in [app.plain.options(sequence="far").after(60).submit() for _ in range(3)]:
        assert waiting.cancel()
    for waiting in [app.called.after(60).submit("far") for _ in range(3)]:
        assert waiting.cancel()
    app.queue(f"scarce-{number}", max_depth=1, submit_rate=Rate(100, per=1))
    scarce = app.plain.options(queue=f"scarce-{number}").after(60)
    only = scarce.submit()
    with pytest.raises(LimitExceeded):
        scarce.submit()
    assert only.cancel()
    app.brief.options(expires=0.2).after(0.1).submit()
    ids = app.plain.submit_many([() for _ in range(60)])
    ids += app.plain.after(0.1).submit_many([() for _ in range(10)])
    return [
        app.plain.submit(),
        app.plain.options(queue="other", priority=Priority.USER_BLOCKING).submit(),
        late,
        debounced.after(0.1).submit(),
        app.single.submit(number),
        *(app.plain.options(sequence="near").submit() for _ in range(3)),
        *(app.called.submit(tenant) for tenant in "aabb"),
        app.first.submit(),
        app.brief.submit(),
        *map(app.handle, ids),
    ]


def test_with_the_printed_rights_every_role_does_its_work_and_nothing_is_forbidden(
    restricted_servers: RestrictedServers,
) -> None:
    operator = restricted_servers.app("operator", replicas=len(restricted_servers.servers.nodes))
    submitter, worker = restricted_servers.app("submitter"), restricted_servers.app("worker")
    with operator, submitter, worker:
        operator.manager()  # makes the streams
        events = submitter.events(timeout=PATIENCE)
        with worker.running():
            use_everything(operator, submitter, worker, events)
    assert restricted_servers.violations() == []


def use_everything(operator: Shop, submitter: Shop, worker: Shop, events: Iterable[JobEvent]) -> None:
    submitter.schedules.put("tick", submitter.tick, Every(timedelta(seconds=1)))
    handles = submit_all_kinds(submitter, 1) + submit_all_kinds(worker, 2)
    letter = submitter.flawed.submit()
    slow = submitter.slow.submit()
    for handle in handles:
        assert handle.wait(PATIENCE) is JobStatus.COMPLETED
    assert letter.wait(PATIENCE) is JobStatus.FAILED
    assert worker.is_running.wait(PATIENCE)
    assert not slow.cancel()  # it runs: it is asked to stop
    assert slow.wait(PATIENCE) is JobStatus.CANCELED
    assert any(event.kind is EventKind.CANCELED and event.job_id == slow.id for event in events)

    for app in (submitter, operator, worker):
        assert app.counts()["COMPLETED"] >= len(handles)
        assert [found.id for found in app.dead_letters.list(type="flawed")] == [letter.id]
        assert "done" in str(app.get(handles[0].id).result)
        assert app.explain(letter.id).reason is Reason.FAILED
        assert app.queue("default").statistics().completed
        assert app.prune() == 0
        assert len(app.manager().engine.workers()) == 1
        app.manager().engine.backlog()
    assert submitter.schedules.pause("tick")
    assert submitter.schedules.resume("tick")
    assert worker.has_ticked.wait(PATIENCE)
    submitter.schedules.remove("tick")
    token = operator.tokens.create("front end", scopes=["submit"]).info
    for app in (submitter, operator, worker):  # each may run an HTTP server, which stores the last use
        assert app.tokens.list()[0].id == token.id
        used = app.manager().engine.now()
        assert app.manager().arrange([NoteTokenUses({token.id: used})]) == [True]
        (record,) = app.manager().engine.begin_requests([new_request(f"key of {used}")])
        assert record is not None
        answer = RequestEnd(caller=record.caller, key=record.key, owner=record.owner, answer=b"{}")
        assert app.manager().engine.end_requests([answer]) == [True]
    assert operator.tokens.revoke("front end").last_used is not None
    assert operator.queue("other").pause()
    assert operator.queue("other").resume()
    (replayed,) = operator.dead_letters.replay(type="flawed")
    assert operator.handle(replayed).wait(PATIENCE) is JobStatus.FAILED
    operator.retry(replayed)
    assert operator.handle(replayed).wait(PATIENCE) is JobStatus.FAILED
    assert operator.dead_letters.purge(letter.id, replayed) == 2


def test_jobs_of_a_dead_worker_are_rescued_by_one_with_the_same_rights(
    restricted_server: RestrictedServers,
) -> None:
    with restricted_server.app("operator") as operator:
        operator.manager()
    app = restricted_server.app("worker")
    code = f"from tests.nats.restricted_servers import Shop; Shop({restricted_server.url('worker')!r}).run()"
    with app, program("-c", code, folder=ROOT) as worker:
        events = app.events(timeout=PATIENCE)
        job = app.slow.submit()
        assert any(event.kind is EventKind.STARTED and event.job_id == job.id for event in events)
        worker.kill()
        with app.running():
            assert app.is_running.wait(PATIENCE)
            job.cancel()
            assert job.wait(PATIENCE) is JobStatus.CANCELED
        assert job.info().crashes == 1
    assert restricted_server.violations() == []


def test_a_process_with_the_rights_of_a_worker_takes_the_jobs_of_a_revoked_token(
    restricted_server: RestrictedServers,
) -> None:
    app = restricted_server.app("worker")
    with restricted_server.app("operator") as operator, app:
        token = operator.tokens.create("pictures", scopes=["work"]).info
        engine = app.manager().engine
        terms = RemoteTerms(f"{TOKEN_CALLER}{token.id}", 3_600_000_000)
        worker = engine.enroll(WorkerInfo("pictures", 0, ("plain",), remote=terms))
        job = app.plain.submit()
        found: list[Lease] = []

        def has_claimed() -> bool:
            found.extend(engine.take(worker, [Demand(("plain",), 1, 0)], lead=0, start_lead=0).leases)
            return bool(found)

        assert eventually(has_claimed)
        operator.tokens.revoke("pictures")
        assert eventually(lambda: engine.sweep(0).rescued == [job.id])
        (entry, *_) = app.audit()
        assert (entry.actor, entry.action, entry.target) == ("mainspring", "worker.remove", str(worker))
    assert restricted_server.violations() == []


def test_an_operator_moves_jobs_in_and_a_worker_runs_them(restricted_server: RestrictedServers) -> None:
    url = f"sqlite:///{restricted_server.folder}/shop.db"
    shop = Shop(url)
    with shop:
        jobs = [shop.plain.options(sequence=key).submit() for key in ("a", "a", "b")]
        shop.schedules.put("tick", shop.tick, Every(timedelta(hours=1)))
    run_program("migrate", url, restricted_server.url("operator"))
    with restricted_server.app("worker") as worker, worker.running():
        for job in jobs:
            assert worker.handle(job.id).wait(PATIENCE) is JobStatus.COMPLETED
    assert restricted_server.violations() == []


def test_what_a_submitter_may_not_purge_goes_by_itself(restricted_server: RestrictedServers) -> None:
    with restricted_server.app("operator") as operator:
        operator.manager()
    app = restricted_server.app("submitter")
    with app:
        assert app.plain.options(sequence="order-42").submit().cancel()
        jetstream: Any = app.manager().engine.components.jetstream  # type: ignore[attr-defined]
        found = jetstream.api("STREAM.MSG.GET.shop", {"last_by_subj": "shop.gate.>"})["message"]
        assert b64decode(found["hdrs"]).count(b"Nats-TTL: 3600s") == 1
        assert not found.get("data")
    assert restricted_server.violations() == []
