"""Guarded records of earlier versions, which are in the main stream: copied once, and read while workers need
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import EngineUnavailable, Mainspring
from mainspring.engines.nats.earlier_records import EarlierTokens, EarlierUses
from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import encode
from mainspring.engines.nats.migration import MigrationCheckpoint
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.workers import HeartbeatRecord
from mainspring.engines.nats.write_batch import Write
from mainspring.jobs.records import WorkerInfo
from mainspring.security.tokens import TokenRecord
from tests.nats.servers import Servers
from tests.support import eventually

TOKEN = TokenRecord(id="abc", name="front end", digest="00", scopes=("submit",), created=1)
REVOKED = TokenRecord(id="def", name="gone", digest="01", scopes=("submit",), created=2, revoked=3)


@pytest.fixture
def url(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> str:
    return f"{nats_server.url}?prefix={nats_prefix}&projection={tmp_path / 'jobs.db'}"


@pytest.fixture
def app(url: str) -> Iterator[Mainspring]:
    with Mainspring(url, grace=1) as app:
        yield app


def parts_of(app: Mainspring) -> tuple[Any, JetStream, SubjectNames]:
    engine: Any = app.manager().engine
    return engine, engine.components.jetstream, engine.components.names


def make_earlier(app: Mainspring) -> tuple[JetStream, SubjectNames]:
    """Change the streams to what an earlier version has made: no guarded stream, and all subjects in the main
    one.
    """
    engine, jetstream, names = parts_of(app)
    jetstream.api(f"STREAM.DELETE.{names.guarded_stream}")
    config = engine.components.streams.info()["config"]
    config["subjects"] += [f"{names.earlier_spent}>", names.earlier_tokens, names.earlier_token_uses]
    jetstream.api(f"STREAM.UPDATE.{names.stream}", config)
    return jetstream, names


def test_records_of_an_earlier_version_are_taken_over_once(app: Mainspring, url: str) -> None:
    jetstream, names = make_earlier(app)
    jetstream.store(names.earlier_tokens, encode(EarlierTokens((TOKEN, REVOKED))))
    jetstream.store(names.earlier_token_uses, encode(EarlierUses({"abc": 77})))
    spent = Write(names.earlier_spent_envelope("done"), b"1234", headers={"Nats-TTL": "3600s"})
    assert None not in jetstream.store_each([spent])
    with Mainspring(url) as upgraded:
        assert [(token.name, token.last_used is not None) for token in upgraded.tokens.list()] == [
            ("front end", True),
            ("gone", False),
        ]
        assert str(upgraded.tokens.list()[1].state) == "revoked"
        upgraded.tokens.revoke("front end")
        assert upgraded.manager().engine.spent(["done"]) == {"done": 1234}
        ((_, message),) = parts_of(upgraded)[1].scan_all(names.spent_envelope("done"))
        assert message.ttl == "3600s"
    # what is written in the main stream later counts no more: a submitter could write it
    evil = TokenRecord(id="evil", name="evil", digest="66", scopes=("admin",), created=1)
    jetstream.store(names.earlier_tokens, encode(EarlierTokens((TOKEN, evil))))
    with Mainspring(url) as again:
        assert [(token.name, str(token.state)) for token in again.tokens.list()] == [
            ("front end", "revoked"),
            ("gone", "revoked"),
        ]


def test_a_move_that_an_earlier_version_has_begun_keeps_workers_out(app: Mainspring, url: str) -> None:
    jetstream, names = make_earlier(app)
    jetstream.store(f"{names.moves}m1", encode(MigrationCheckpoint("m1", "sqlite:///shop.db", base=1)))
    with (
        Mainspring(url) as upgraded,
        pytest.raises(EngineUnavailable, match=r"jobs are being moved here from sqlite:///shop\.db"),
        upgraded.running(),
    ):
        pytest.fail("it runs")


def test_workers_of_an_earlier_version_and_of_this_one_see_each_other(app: Mainspring) -> None:
    """During a rolling upgrade without roles: the earlier one reads and writes heartbeats in the main stream
    only.
    """
    engine, jetstream, names = parts_of(app)
    number = engine.enroll(WorkerInfo("new", 1, ()))
    assert not jetstream.read_one(names.earlier_worker(number)).data  # no worker reads it
    record = HeartbeatRecord("old", 2, (), jetstream.now())
    jetstream.store(names.earlier_worker(number + 1_000), encode(record))
    assert [worker.info.name for worker in engine.workers()] == ["new", "old"]
    assert engine._workers.lease_left(number + 1_000, jetstream.now()) > 0
    assert engine.renew(number)
    assert eventually(lambda: bool(jetstream.read_one(names.earlier_worker(number)).data))
    assert [worker.info.name for worker in engine.workers()] == ["new", "old"]
    engine.leave(number)
    assert eventually(lambda: not jetstream.read_one(names.earlier_worker(number)).data)
