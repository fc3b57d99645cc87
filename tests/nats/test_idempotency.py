"""`Idempotency-Key` on NATS: servers that are killed, lost replies, a missing stream, and expired messages."""

from __future__ import annotations

import pytest

from mainspring import Mainspring, NatsSettings
from mainspring.engines.nats import requests
from mainspring.engines.nats.requests import TTL_MARGIN_SECONDS
from mainspring.errors import EngineUnavailable, RefusedByStore
from mainspring.testing.conformance.requests import begin, end, new_request
from tests.nats.fault_bench import FaultBench, MakeBench
from tests.nats.servers import Servers
from tests.support import eventually
from tests.web.idempotency_suite import IdempotencySuite


@pytest.mark.long
class TestIdempotencyOnNats(IdempotencySuite):
    @pytest.fixture
    def url(self, nats_server: Servers, nats_prefix: str) -> str:
        return f"{nats_server.url}?prefix={nats_prefix}"


def test_a_lost_reply_to_a_beginning_is_found_out(bench: FaultBench) -> None:
    bench.lose_reply("request")
    record = begin(bench, new_request("a"))
    assert len(bench.lost) == 1
    assert record is not None
    assert record.owner == "first"
    assert begin(bench, new_request("a", owner="second")) == record


def test_a_lost_reply_to_an_end_is_found_out(bench: FaultBench) -> None:
    for number, answer in enumerate((b"answer", None)):
        assert begin(bench, new_request(f"key {number}"))
        bench.lose_reply("request")
        assert end(bench, f"key {number}", answer)
        record = begin(bench, new_request(f"key {number}", owner="second"))
        assert record is not None
        assert (record.answer, record.owner) == (answer, "first" if answer else "second")
    assert len(bench.lost) == 2


def test_the_server_deletes_a_request_after_its_time(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "TTL_MARGIN_SECONDS", 1)
    stream = bench.names.requests_stream
    assert begin(bench, new_request("a", kept=1))
    assert end(bench, "a", b"answer")
    assert bench.jetstream.count(bench.names.requests_of("shop"), stream) == 1
    assert eventually(lambda: bench.jetstream.count(bench.names.requests_of("shop"), stream) == 0)
    assert TTL_MARGIN_SECONDS > 1  # so that clocks may differ


def test_requests_of_all_processes_count(bench: FaultBench, other: FaultBench) -> None:
    for number in range(3):
        assert begin(bench, new_request(f"key {number}", most=3))
    assert begin(other, new_request("key 3", most=3)) is None
    assert begin(other, new_request("key 3", most=4)) is not None


def test_a_full_store_refuses_keys_of_every_caller(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_REQUESTS", 2)
    assert begin(bench, new_request("a", caller="shop"))
    assert begin(bench, new_request("a", caller="mail"))
    assert begin(bench, new_request("a", caller="news")) is None
    repeated = begin(bench, new_request("a", caller="mail", owner="second"))
    assert repeated is not None
    assert repeated.owner == "first"


def test_a_stream_that_was_deleted_is_made_again(bench: FaultBench, make_bench: MakeBench) -> None:
    stream = bench.names.requests_stream
    bench.jetstream.api(f"STREAM.DELETE.{stream}")
    assert begin(bench, new_request("a"))
    config = bench.jetstream.api(f"STREAM.INFO.{stream}")["config"]
    bench.jetstream.api(f"STREAM.UPDATE.{stream}", {**config, "max_bytes": 1_048_576})
    make_bench()
    config = bench.jetstream.api(f"STREAM.INFO.{stream}")["config"]
    assert config["max_bytes"] == 1_048_576  # an operator may change it
    assert config["discard"] == "new"


def test_a_stream_that_is_deleted_while_it_is_used_is_made_again(bench: FaultBench) -> None:
    assert begin(bench, new_request("a"))
    bench.jetstream.api(f"STREAM.DELETE.{bench.names.requests_stream}")
    with pytest.raises(EngineUnavailable):
        begin(bench, new_request("b"))
    assert begin(bench, new_request("b"))


def test_a_process_that_creates_no_streams_says_who_must(nats_server: Servers, nats_prefix: str) -> None:
    url = f"{nats_server.url}?prefix={nats_prefix}"
    with Mainspring(url) as app:
        app.manager().engine.components.jetstream.api(  # type: ignore[attr-defined]
            f"STREAM.DELETE.{nats_prefix}-requests"
        )
    with Mainspring(url, nats=NatsSettings(prepared=True, timeout=5)) as app:
        app.job(name="ping")(lambda: None).submit()
        with pytest.raises(RefusedByStore, match=r"an operator creates it.*send no Idempotency-Key"):
            app.manager().engine.begin_requests([new_request("a")])
