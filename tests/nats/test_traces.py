"""Traces on NATS: the context of a submit comes back with the job, through retries, follow-ups and schedules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import DeadLetter, Mainspring, NatsSettings, Retry
from tests.nats.chaos_workers import projection_in
from tests.nats.servers import Servers
from tests.recorded_spans import RecordedSpans, attributes, ids_of, links_of
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long


@pytest.fixture
def recorded() -> Iterator[RecordedSpans]:
    spans = RecordedSpans()
    yield spans
    spans.close()


@pytest.fixture
def app(nats_server: Servers, nats_prefix: str, tmp_path: Path, recorded: RecordedSpans) -> Iterator[Mainspring]:
    settings = NatsSettings(prefix=nats_prefix, timeout=PATIENCE)
    with Mainspring(f"{nats_server.url}?{projection_in(tmp_path)}", nats=settings, threads=2) as app:
        app.middleware(recorded.middleware())
        yield app


def test_attempts_follow_ups_dead_letters_and_replays_have_links(app: Mainspring, recorded: RecordedSpans) -> None:
    @app.job(name="last", retry=Retry(max_attempts=2, base=0))
    def last(number: int) -> None:
        raise ValueError("no")

    @app.job(name="first", then=last)
    def first(number: int) -> int:
        return number

    @app.on_dead_letter
    @app.job(name="alarm")
    def alarm(letter: DeadLetter) -> None: ...

    with app.running():
        first.submit_many([(1,)])
        assert eventually(lambda: len(recorded.attempts_of("alarm")) == 1)
        (letter,) = app.dead_letters.list()
        app.handle(*app.dead_letters.replay(letter.id)).wait(PATIENCE)
        assert eventually(lambda: len(recorded.attempts_of("alarm")) == 2)
    (submit,), (attempt,) = recorded.submits, recorded.attempts_of("first")
    assert attributes(submit)["messaging.batch.message_count"] == 1
    assert links_of(attempt) == [ids_of(submit)]
    assert [links_of(span) for span in recorded.attempts_of("last")] == [[ids_of(attempt)]] * 4
    assert [links_of(span) for span in recorded.attempts_of("alarm")] == [[ids_of(attempt)]] * 2


def test_jobs_of_schedules_have_links_to_their_firing(app: Mainspring, recorded: RecordedSpans) -> None:
    @app.every(1, name="tick", overlap="allow")
    @app.job
    def tick() -> None: ...

    with app.running():
        assert eventually(lambda: len(recorded.attempts) >= 1)
        app.schedules.trigger("tick").wait(PATIENCE)
    stored = {ids_of(span) for span in recorded.submits if "messaging.message.id" in attributes(span)}
    for attempt in recorded.attempts:
        (link,) = links_of(attempt)
        assert link in stored
