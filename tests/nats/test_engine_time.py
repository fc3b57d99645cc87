"""Engine time is server time: the clock of the machine on which an application runs may be wrong, or be set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue
from threading import Event

import pytest

from mainspring import Mainspring, NatsSettings
from mainspring.clock import SystemClock
from mainspring.engines.nats import engine, streams
from mainspring.engines.nats.server_clock import TimeSample
from mainspring.jobs.timestamps import MICROSECONDS, to_instant
from mainspring.testing.conformance.bench import seconds
from tests.nats.chaos_workers import projection_in
from tests.nats.fault_bench import FaultBench, MakeBench
from tests.nats.servers import MakeServers, Servers
from tests.support import PATIENCE, eventually

TOLERANCE = seconds(PATIENCE)
"""What a busy machine may be late by; a clock that is believed wrongly is off by an hour."""
AFTER = 1.5
"""Later than the lead, so that the server has a part in it."""
EARLY = seconds(1)
"""What the measured time of the server may be wrong by: less than `AFTER`, which a wrong clock takes for past."""


class WrongClock(SystemClock):
    """The time of the operating system, and so many seconds more on the wall."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.shift)


shifts = pytest.mark.parametrize("shift", [3_600.0, -3_600.0], ids=["ahead", "behind"])


@pytest.fixture
def right(make_bench: MakeBench) -> FaultBench:
    return make_bench()


def true_now() -> int:
    """The time of the server, which runs on this machine."""
    return to_instant(SystemClock().now(), "now")


def is_true(instant: int) -> bool:
    return abs(instant - true_now()) < TOLERANCE


@shifts
def test_the_time_of_an_engine_is_that_of_the_server(make_bench: MakeBench, shift: float) -> None:
    assert is_true(make_bench(clock=WrongClock(shift)).now)


@shifts
def test_a_job_of_one_whose_clock_is_wrong_is_due_when_it_meant(
    right: FaultBench, make_bench: MakeBench, shift: float
) -> None:
    wrong = make_bench(clock=WrongClock(shift))
    wrong.submit("job", after=AFTER)
    due = true_now() + seconds(AFTER)
    assert abs(right.record().due - due) < TOLERANCE
    assert is_true(right.record().created)
    _, lease = right.take_by_new_worker()
    assert abs(lease.due - due) < TOLERANCE
    assert true_now() > due - seconds(1) - EARLY, "it was handed over before the lead"


@shifts
def test_a_worker_whose_clock_is_wrong_starts_nothing_early_or_late(
    right: FaultBench, make_bench: MakeBench, shift: float
) -> None:
    wrong = make_bench(clock=WrongClock(shift))
    right.submit("now")
    right.submit("soon", after=AFTER)
    worker = wrong.enroll()
    (now,) = wrong.take_when_there(worker, 1)
    assert (now.id, now.is_started) == ("now", True)
    assert is_true(right.record("now").started or 0)
    (soon,) = wrong.take_when_there(worker, 1)
    assert (soon.id, soon.is_started) == ("soon", False), "it is held, not started"
    assert soon.due - true_now() < seconds(1) + EARLY, "it was handed over before the lead"


@shifts
def test_who_lives_is_told_by_the_servers_time(make_bench: MakeBench, right: FaultBench, shift: float) -> None:
    wrong = make_bench(clock=WrongClock(shift), lease=3)
    worker, lease = wrong.begin()
    wrong.deliver_again("job")
    rival = make_bench(clock=WrongClock(-shift), lease=3)
    assert rival.take(rival.enroll()) == []
    assert right.record().owner == worker
    wrong.complete(worker, lease)


def test_a_wall_clock_that_is_set_while_an_engine_is_open_does_not_matter_to_it(make_bench: MakeBench) -> None:
    clock = WrongClock(0)
    bench = make_bench(clock=clock)
    clock.shift = 7_200
    bench.streams.measure_time()
    assert is_true(bench.now)
    bench.submit("job", after=AFTER)
    assert abs(bench.record().due - true_now() - seconds(AFTER)) < TOLERANCE


def drift(bench: FaultBench) -> None:
    """Let an engine be an hour behind."""
    now = bench.jetstream.monotonic()
    bench.jetstream.add_time(TimeSample(now, now, true_now() - seconds(3_600)))
    assert not is_true(bench.now)


def test_the_time_is_measured_again_after_a_minute(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench()
    drift(bench)
    bench.submit("before")
    assert not is_true(bench.now), "a clock that has drifted is believed for a while"
    monkeypatch.setattr(streams, "CLOCK_KEPT", 0)
    bench.submit("after")
    assert is_true(bench.now)


def test_the_time_is_measured_again_when_the_server_was_away(make_bench: MakeBench) -> None:
    bench = make_bench()
    drift(bench)
    bench.jetstream.on_connection(True)
    bench.take(bench.enroll())
    assert is_true(bench.now)


LAG = 0.04
"""Seconds that one direction takes longer, so that the middle of a round trip is wrong by 20 ms."""


def test_a_delay_is_not_shorter_than_asked_if_replies_are_late(
    make_nats_server: MakeServers, nats_prefix: str, tmp_path: Path
) -> None:
    proxy = make_nats_server().proxy()
    proxy.lag_to_client = LAG
    with Mainspring(f"{proxy.url}?{projection_in(tmp_path)}", nats=NatsSettings(prefix=nats_prefix)) as app:
        job = app.job(name="job")(print)
        before = true_now()
        handle = job.after(AFTER).submit()
        assert to_instant(app.get(handle.id).due, "due") >= before + seconds(AFTER)
        before = true_now()
        assert handle.reschedule(delay=2 * AFTER)
        assert to_instant(app.get(handle.id).due, "due") >= before + seconds(2 * AFTER)
        store = app.manager().engine
        assert store.now() <= true_now() <= store.latest()


def test_the_bounds_stay_narrow_while_nothing_calls_the_engine(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SAMPLE_SECONDS", 0.01)
    bench = make_bench()
    drift(bench)
    assert eventually(lambda: is_true(bench.now))


# -- whole applications


@pytest.mark.long
def test_no_job_starts_early_if_requests_are_late(
    make_nats_server: MakeServers, nats_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "START_LEAD", seconds(0.5))  # so that starts are stored long before they are due
    proxy = make_nats_server().proxy()
    proxy.lag_to_server = LAG
    app = Mainspring(f"{proxy.url}?{projection_in(tmp_path)}", nats=NatsSettings(prefix=nats_prefix), threads=8)
    begun: Queue[int] = Queue()

    @app.job
    def note() -> None:
        begun.put(true_now())

    with app, app.running():
        due = true_now() + seconds(AFTER)
        for _ in range(8):
            note.at(datetime.fromtimestamp(due / MICROSECONDS, UTC)).submit()
        first = min(begun.get(timeout=PATIENCE) for _ in range(8))
    assert first >= due, f"{due - first} microseconds early"


@pytest.mark.long
@shifts
def test_an_application_whose_clock_is_wrong_runs_jobs_in_time(
    nats_server: Servers, nats_prefix: str, tmp_path: Path, shift: float
) -> None:
    url = f"{nats_server.url}?{projection_in(tmp_path)}"
    app = Mainspring(url, nats=NatsSettings(prefix=nats_prefix), clock=WrongClock(shift), threads=2)
    begun: dict[str, int] = {}
    are_done = {name: Event() for name in ("after", "at")}

    @app.job
    def note(name: str) -> None:
        begun[name] = true_now()
        are_done[name].set()

    with app, app.running():
        due = true_now() + seconds(AFTER)
        note.after(AFTER).submit("after")
        note.at(datetime.fromtimestamp(due / MICROSECONDS, UTC)).submit("at")
        for is_done in are_done.values():
            assert is_done.wait(PATIENCE)
    for name, instant in begun.items():
        late = instant - due
        assert -EARLY < late < TOLERANCE, f"{name} was {late} microseconds late"
