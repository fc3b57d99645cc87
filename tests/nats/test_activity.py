"""The history of activity on NATS: jobs do not need its stream, and the projection adds its messages up."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mainspring import EngineUnavailable, Mainspring, NatsSettings
from mainspring.jobs.activity import MINUTE
from mainspring.jobs.activity_rows import ActivityBatch, ActivityCount, rows_of
from tests import exiting_program
from tests.nats.fault_bench import FaultBench, MakeBench
from tests.nats.servers import Servers
from tests.programs import program
from tests.support import PATIENCE


def batch(bench: FaultBench, number: int, count: int, sender: str = "process") -> ActivityBatch:
    start = bench.now // MINUTE * MINUTE
    return ActivityBatch(sender, number, (ActivityCount(start, "mail", "send", "submitted", "", 0, count),))


def submitted(bench: FaultBench) -> int:
    return sum(row.submitted for row in rows_of(bench.nats.activity(0, bench.now + 1)))


def make_app(servers: Servers, prefix: str, folder: Path, name: str, **settings: object) -> Mainspring:
    projection = str(folder / f"{name}.projection")
    return Mainspring(
        servers.url,
        nats=NatsSettings(prefix=prefix, projection=projection, **settings),  # type: ignore[arg-type]
    )


def test_two_applications_add_up(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> None:
    for name in ("first", "second"):
        with make_app(nats_server, nats_prefix, tmp_path, name) as app:

            @app.job(name="send", queue="mail")
            def send() -> None: ...

            send.submit_many([()] * 5)
            with app.running():
                app.queue("mail").drain(timeout=60)
    with make_app(nats_server, nats_prefix, tmp_path, "third") as reader:
        rows = reader.activity()
        assert sum(row.submitted for row in rows) == 10
        assert sum(row.attempts.get("completed", 0) for row in rows) == 10
        assert sum(histogram.count for row in rows for histogram in row.lateness.values()) == 10


def test_the_server_ignores_a_batch_that_is_sent_again(bench: FaultBench) -> None:
    for _ in range(3):
        bench.nats.record_activity(batch(bench, 1, 5))
    assert bench.jetstream.last_sequence(bench.names.activity_stream) == 1
    assert submitted(bench) == 5


def test_the_projection_ignores_a_batch_that_the_server_has_twice(bench: FaultBench) -> None:
    bench.nats.record_activity(batch(bench, 1, 5))
    data = bench.jetstream.scan(bench.names.activity, stream=bench.names.activity_stream)[0][1].data
    bench.jetstream.store(bench.names.activity, data)  # without the id of the message
    bench.nats.record_activity(batch(bench, 2, 1))
    assert bench.jetstream.last_sequence(bench.names.activity_stream) == 3
    assert submitted(bench) == 6


def test_a_message_that_cannot_be_read_is_left_out(bench: FaultBench, caplog: pytest.LogCaptureFixture) -> None:
    bench.jetstream.store(bench.names.activity, b"\xc1")
    bench.nats.record_activity(batch(bench, 1, 5))
    with caplog.at_level(logging.WARNING, "mainspring.nats"):
        assert submitted(bench) == 5
    assert "cannot be decoded" in caplog.text


def test_the_history_begins_anew_if_its_stream_was_created_again(bench: FaultBench) -> None:
    for number in range(1, 4):
        bench.nats.record_activity(batch(bench, number, 5))
    assert submitted(bench) == 15
    bench.jetstream.api(f"STREAM.DELETE.{bench.names.activity_stream}")
    assert submitted(bench) == 0
    bench.nats.components.streams.prepare()
    bench.nats.record_activity(batch(bench, 4, 1))
    assert submitted(bench) == 1


def test_an_operator_may_change_the_limits_of_the_stream(bench: FaultBench, make_bench: MakeBench) -> None:
    stream = bench.names.activity_stream
    config = bench.jetstream.api(f"STREAM.INFO.{stream}")["config"]
    assert config["max_age"] == 8 * 24 * 3600 * 10**9
    bench.jetstream.api(f"STREAM.UPDATE.{stream}", {**config, "max_bytes": 1_048_576, "max_age": 3600 * 10**9})
    make_bench()
    config = bench.jetstream.api(f"STREAM.INFO.{stream}")["config"]
    assert (config["max_bytes"], config["max_age"]) == (1_048_576, 3600 * 10**9)


def test_a_process_that_creates_no_streams_works_without_the_history(
    nats_server: Servers, nats_prefix: str, tmp_path: Path
) -> None:
    with make_app(nats_server, nats_prefix, tmp_path, "first") as app:
        app.manager()
        jetstream = app.manager().engine.components.jetstream  # type: ignore[attr-defined]
        jetstream.api(f"STREAM.DELETE.{nats_prefix}-activity")
    with make_app(nats_server, nats_prefix, tmp_path, "second", prepared=True, timeout=0.5) as app:

        @app.job(name="send")
        def send() -> None: ...

        job_id = send.submit().id
        engine = app.manager().engine
        with pytest.raises(EngineUnavailable):
            engine.record_activity(ActivityBatch("process", 1, ()))
        assert app.activity() == []
        assert app.get(job_id).status == "PENDING"


@pytest.mark.parametrize("action", ["exit", "fork"])
def test_a_process_that_only_submits_stores_its_counts_at_its_exit(
    nats_server: Servers, nats_prefix: str, tmp_path: Path, action: str
) -> None:
    with program(exiting_program.__file__, f"{nats_server.url}?prefix={nats_prefix}", action) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    with make_app(nats_server, nats_prefix, tmp_path, "reader") as reader:
        assert [(row.type, row.submitted) for row in reader.activity()] == [("send", 1)]
