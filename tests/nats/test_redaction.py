"""Redacted parameters on NATS: their values appear nowhere, also after a migration from a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import JobStatus, Mainspring, NatsSettings
from mainspring.engines.nats.job_records import encode
from mainspring.engines.nats.settings_cache import _SettingsRecord
from mainspring.jobs.commands import PutRedaction
from tests.nats.chaos_workers import projection_in
from tests.nats.fault_bench import fault_benches
from tests.nats.servers import Servers
from tests.redacted_shop import RedactedShop, describe_log, find_canaries
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long


@pytest.fixture
def app(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[Mainspring]:
    settings = NatsSettings(prefix=nats_prefix, timeout=PATIENCE)
    with Mainspring(f"{nats_server.url}?{projection_in(tmp_path)}", nats=settings, threads=2) as app:
        yield app


def test_secrets_appear_nowhere(app: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shop = RedactedShop(app)
    with app.running():
        ids = shop.submit_all()
        for job_id in ids:
            assert app.handle(job_id).wait(PATIENCE) is JobStatus.FAILED
        (replayed,) = app.dead_letters.replay("charge", changes={"order": 7})
        assert app.handle(replayed).wait(PATIENCE) is JobStatus.FAILED
        assert eventually(lambda: len(shop.letters) == len(ids) + 1)
    shown = [*shop.shown([*ids, replayed]), *describe_log(caplog.records)]
    assert len(shown) > 80
    assert find_canaries(iter(shown)) == []


def test_a_lost_notification_shows_no_secret(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> None:
    with fault_benches(nats_server, nats_prefix, tmp_path, lease=2.0) as make:
        bench, other = make(), make()
        assert other.engine.redactions() == {}
        other.nats._on_notification = lambda subject, data: None  # type: ignore[method-assign]
        assert bench.arrange(PutRedaction("pay", ("card",)))
        other.nats.components.settings_cache.must_refresh = False
        assert other.engine.redactions() == {"pay": ("card",)}


def test_settings_of_the_version_before_have_no_redacted_parameters(
    nats_server: Servers, nats_prefix: str, tmp_path: Path
) -> None:
    with fault_benches(nats_server, nats_prefix, tmp_path, lease=2.0) as make:
        bench = make()
        transactions = bench.nats.components.transactions
        before = [("paused",), (), ()]  # the fields that the record had
        transactions.run(lambda transaction: _put(transaction, before))
        assert bench.engine.redactions() == {}
        assert bench.arrange(PutRedaction("pay", ("card",)))
        assert bench.engine.redactions() == {"pay": ("card",)}
        assert bench.engine.paused_queues() == ("paused",)
        assert bench.engine.callback_pauses() == ()
        assert _SettingsRecord.__struct_fields__[len(before) :] == ("redactions", "callback_pauses")


def _put(transaction: object, fields: list[tuple[str, ...]]) -> None:
    subject = transaction.names.settings  # type: ignore[attr-defined]
    transaction.stored(subject)  # type: ignore[attr-defined]
    transaction.put(subject, encode(list(fields)))  # type: ignore[attr-defined]
