"""The audit trail on NATS: an entry shares the batch of its change, also after lost replies and on old streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Keep, Mainspring, NatsSettings, acting_as
from mainspring.engines.nats.engine import NatsEngine
from mainspring.jobs.audit import Actor, AuditEntry, AuditQuery
from mainspring.jobs.audit_drafts import AuditDraft
from mainspring.jobs.commands import (
    Arrangement,
    CancelJob,
    PauseQueue,
    PauseSchedule,
    PutToken,
    RemoveSchedule,
    Replay,
)
from mainspring.jobs.status import JobStatus
from mainspring.security.permissions import Permissions, Scope
from mainspring.security.tokens import make_token
from mainspring.testing.conformance.schedule_driver import NAME, ScheduleDriver
from tests.nats.fault_bench import FaultBench
from tests.nats.migration_stores import Target, move
from tests.nats.restricted_servers import RestrictedServers
from tests.nats.servers import MakeServers, Servers
from tests.support import eventually

TOKEN = make_token("shop", Permissions(scopes=frozenset({Scope.READ})), created=1)[1]


@pytest.fixture
def url(nats_server: Servers, nats_prefix: str) -> str:
    return f"{nats_server.url}?prefix={nats_prefix}"


@pytest.fixture
def app(url: str) -> Iterator[Mainspring]:
    with Mainspring(url) as app:
        yield app


def engine_of(app: Mainspring) -> NatsEngine:
    engine = app.manager().engine
    assert isinstance(engine, NatsEngine)
    return engine


def draft(bench: FaultBench, *, is_bulk: bool = False) -> AuditDraft:
    return AuditDraft(Actor(name="alice", source="test"), bench.now, is_bulk=is_bulk)


def entries(bench: FaultBench) -> list[AuditEntry]:
    return bench.engine.audit_entries(AuditQuery(limit=100))


# -- lost replies


def test_a_cancel_whose_reply_was_lost_has_one_entry(bench: FaultBench) -> None:
    bench.submit("job", after=3_600)
    bench.lose_reply("audit")
    (answer,) = bench.engine.change([CancelJob("job")], audit=draft(bench))
    assert (answer.is_done, len(bench.lost)) == (True, 1)
    (entry,) = entries(bench)
    assert (entry.action, entry.target, entry.count) == ("job.cancel", "job", 1)


@pytest.mark.parametrize("losses", [1, 2, 3])
def test_a_change_of_many_jobs_counts_each_once_whatever_reply_is_lost(bench: FaultBench, losses: int) -> None:
    ids = [f"job {number}" for number in range(120)]
    bench.submit(*ids, after=3_600)
    for _ in range(losses):
        bench.lose_reply("audit")
    audit = draft(bench, is_bulk=True)
    answers = bench.engine.change([CancelJob(job_id) for job_id in ids], audit=audit)
    assert all(answer.is_done for answer in answers)
    assert len(bench.lost) == losses
    (entry,) = entries(bench)
    assert (entry.count, entry.jobs, entry.details) == (120, tuple(ids[:100]), {})


def test_a_replay_whose_reply_was_lost_has_one_entry(bench: FaultBench) -> None:
    bench.bury("letter")
    bench.lose_reply("audit")
    assert bench.engine.change([Replay("letter", "copy", bench.now)], audit=draft(bench))[0].is_done
    (entry,) = entries(bench)
    assert (entry.action, entry.target, entry.jobs) == ("dead_letter.replay", "letter", ("copy",))


@pytest.mark.parametrize(
    "arrangement",
    [
        PauseQueue("mail", is_paused=True),
        PauseSchedule(NAME, is_paused=True, next_due=None),
        RemoveSchedule(NAME),
        PutToken(TOKEN),
    ],
)
def test_an_arrangement_whose_reply_was_lost_has_one_entry(bench: FaultBench, arrangement: Arrangement) -> None:
    ScheduleDriver(bench).put()
    bench.lose_reply("audit")
    assert bench.engine.arrange([arrangement], audit=draft(bench)) == [True]
    assert len(bench.lost) == 1
    assert len(entries(bench)) == 1


def test_a_trigger_whose_reply_was_lost_has_one_entry(bench: FaultBench) -> None:
    timetable = ScheduleDriver(bench)
    timetable.put()
    bench.lose_reply("audit")
    (fired,) = bench.engine.fire([timetable.trigger("by hand")], audit=draft(bench))
    assert (fired.submitted, len(bench.lost)) == (("by hand",), 1)
    (entry,) = entries(bench)
    assert (entry.action, entry.jobs) == ("schedule.trigger", ("by hand",))


def test_a_change_and_its_entry_are_one_batch(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.submit("job", after=3_600)
    batches: list[list[str]] = []
    commit = bench.jetstream._commit

    async def watch(writes: Any) -> int | None:
        batches.append([write.subject for write in writes])
        return await commit(writes)

    monkeypatch.setattr(bench.jetstream, "_commit", watch)
    bench.engine.change([CancelJob("job")], audit=draft(bench))
    (batch,) = batches
    assert bench.names.job("job") in batch
    assert any(subject.startswith(bench.names.audit) for subject in batch)


# -- streams of earlier versions


def without_audit(app: Mainspring) -> None:
    """Take the subject of the audit trail away from the stream, as an earlier version has made it."""
    engine = engine_of(app)
    names = engine.components.names
    config = engine.components.streams.info()["config"]
    config["subjects"] = [subject for subject in config["subjects"] if not subject.startswith(names.audit)]
    engine.components.jetstream.api(f"STREAM.UPDATE.{names.stream}", config)


def test_a_stream_of_an_earlier_version_gets_the_subject(app: Mainspring, url: str) -> None:
    without_audit(app)
    with Mainspring(url) as upgraded, acting_as("alice"):
        upgraded.queue("mail").pause()
        assert len(upgraded.audit()) == 1


def test_a_process_that_may_not_update_the_stream_acts_and_says_that_nothing_is_recorded(
    app: Mainspring, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    without_audit(app)
    prepared = Mainspring(url, nats=NatsSettings(prepared=True))
    with prepared as old, acting_as("alice"), caplog.at_level(logging.WARNING):
        assert old.queue("mail").pause()
        assert old.queue("mail").resume()
        assert old.audit() == []
        told = [record.getMessage() for record in caplog.records if "audit trail" in record.getMessage()]
        assert len(told) == 1
        assert "role=operator" in told[0]
        with Mainspring(url) as operator:
            operator.manager()  # updates the stream
        assert old.queue("mail").pause()
        assert [entry.action for entry in old.audit()] == ["queue.pause"]


# -- permissions, migration, pruning, clusters


@pytest.mark.long
def test_each_role_records_what_it_may_do_with_the_printed_rights(restricted_server: RestrictedServers) -> None:
    with restricted_server.app("operator") as operator, acting_as("operator"):
        operator.queue("a").pause()
        operator.tokens.create("front end", scopes=["read"])
    submitter = restricted_server.app("submitter")
    with submitter, acting_as("submitter"):
        assert submitter.plain.options(id="job").after(60).submit().cancel()
        submitter.queue("b").pause()
        assert submitter.prune() == 0
    with restricted_server.app("worker") as worker, acting_as("worker"):
        worker.keep = Keep(most_audited=2)
        worker.queue("c").pause()
        assert [entry.actor for entry in worker.audit()][1:] == ["submitter"] * 2 + ["operator"] * 2
        worker.prune()
    with restricted_server.app("worker") as worker:
        worker.manager().prune()
    assert restricted_server.violations() == []


def test_the_trail_moves_with_the_jobs(
    app: Mainspring, nats_server: Servers, nats_prefix: str, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    with Mainspring(f"sqlite:///{path}") as source, acting_as("alice", token="id"):
        source.queue("mail").pause()
        source.queue("mail").resume()
        before = source.audit()
    with acting_as("there"):
        app.queue("other").pause()
    with acting_as("mover"):
        move(path, Target(nats_server.url, nats_prefix, tmp_path))
    migration, there, *moved = app.audit()
    assert moved == before
    assert there.actor == "there"
    assert (migration.actor, migration.action) == ("mover", "store.migrate")
    assert str(path) in (migration.target or "")


def test_a_prune_keeps_the_newest_entries_and_all_else(url: str) -> None:
    with Mainspring(url, keep=Keep(most_audited=3)) as app:
        app.job(name="later")(lambda: None).options(id="job", delay=3_600).submit()
        with acting_as("alice"):
            for number in range(5):
                app.queue(f"q{number}").pause()
        app.prune()
        assert eventually(lambda: len(app.audit()) == 3)
        assert [entry.target for entry in app.audit()] == ["q4", "q3", "q2"]
        assert app.get("job").status is JobStatus.PENDING
        assert len(app.manager().engine.paused_queues()) == 5


@pytest.mark.long
def test_on_a_cluster_an_entry_is_listed_at_once(make_nats_cluster: MakeServers) -> None:
    url = ",".join(make_nats_cluster().urls)
    with Mainspring(f"{url}?replicas=3") as app, Mainspring(url) as other, acting_as("alice"):
        for number in range(20):
            app.queue(f"q{number}").pause()
            assert len(other.audit()) == number + 1
