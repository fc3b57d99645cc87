"""Crashes on demand: a process dies at every step on its store, and the next one goes on from what is there."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import active_count
from typing import NamedTuple

import pytest

from mainspring import EngineUnavailable, JobFunction, JobStatus, Mainspring, Retry, current_job
from mainspring.jobs.commands import CancelJob, Delete
from mainspring.testing import Crash, ProcessDied, assert_submitted, every_crash

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Iterator[Mainspring]:
    """An application; the crashes bring stores of their own."""
    with Mainspring("memory://") as application:
        yield application


class Ledger:
    """What handlers have done to the world outside."""

    def __init__(self) -> None:
        self.charges: list[int] = []
        self.paid: set[str] = set()

    def clear(self) -> None:
        self.charges.clear()
        self.paid.clear()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def charge(app: Mainspring, ledger: Ledger) -> JobFunction[[int], None]:
    @app.job(name="charge")
    def charge(order: int) -> None:
        ledger.charges.append(order)

    return charge


@pytest.fixture
def charge_once(app: Mainspring, ledger: Ledger) -> JobFunction[[int], None]:
    @app.job(name="charge_once")
    def charge_once(order: int) -> None:
        if current_job().id not in ledger.paid:
            ledger.paid.add(current_job().id)
            ledger.charges.append(order)

    return charge_once


def charge_never_twice(app: Mainspring, job: JobFunction[[int], None], ledger: Ledger) -> int:
    """What a user would write; returns the number of runs."""
    runs = 0
    for crash in every_crash(app, lambda: job.after(60).submit(42), prepare=ledger.clear):
        with crash.recovered():
            assert len(ledger.charges) <= 1, "charged twice"
            assert ledger.charges == [42] or not crash.acknowledged, "never charged"
        runs += 1
    return runs


class Plain(NamedTuple):
    """All crashes of one submit whose result is not read, and what they leave."""

    crashes: list[Crash]
    prepared: int
    charges: list[int]


@pytest.fixture(scope="module")
def plain() -> Plain:
    """Let a process die at every step of one submit, once for all tests that ask what came of it."""
    ledger = Ledger()
    prepared: list[int] = []

    def prepare() -> None:
        prepared.append(1)
        ledger.clear()

    with Mainspring("memory://") as app:

        @app.job(name="charge")
        def charge(order: int) -> None:
            ledger.charges.append(order)

        crashes = list(every_crash(app, lambda: charge.submit(42), prepare=prepare))
    return Plain(crashes, len(prepared), ledger.charges)


# -- what is found


def test_a_handler_that_is_not_idempotent_is_found_out(
    app: Mainspring, charge: JobFunction[[int], None], ledger: Ledger
) -> None:
    with pytest.raises(AssertionError, match="charged twice") as caught:
        charge_never_twice(app, charge, ledger)
    (note,) = caught.value.__notes__
    assert note.startswith("after crash ")
    assert "the process died before UPDATE jobs" in note


def test_an_idempotent_handler_survives_every_crash(
    app: Mainspring, charge_once: JobFunction[[int], None], ledger: Ledger
) -> None:
    assert charge_never_twice(app, charge_once, ledger) > 10


def test_a_store_that_asks_for_the_fencing_token_survives_every_crash(app: Mainspring) -> None:
    stored: dict[int, int] = {}
    refused: list[int] = []

    @app.job(name="write")
    def write(order: int) -> None:
        token = current_job().fencing_token
        if token < stored.get(order, 0):
            refused.append(token)
        else:
            stored[order] = token

    tokens: set[int] = set()
    for crash in every_crash(app, lambda: write.submit(42), prepare=stored.clear):
        with crash.recovered():
            tokens |= set(stored.values())
            assert 42 in stored or not crash.acknowledged
    assert refused == []
    assert len(tokens) > 1  # what ran again had a greater one


def test_the_last_run_is_the_one_that_got_through(plain: Plain) -> None:
    crashes = plain.crashes
    assert [crash.number for crash in crashes] == list(range(len(crashes)))
    assert [crash.step is None for crash in crashes] == [False] * (len(crashes) - 1) + [True]
    assert str(crashes[-1]) == f"in the run without a crash, after all {len(crashes) - 1} steps"
    assert plain.charges == [42]


def test_crashes_come_before_every_write_and_around_every_commit(plain: Plain) -> None:
    steps = [crash.step or "" for crash in plain.crashes][:-1]
    kinds = Counter(" ".join(step.split()[:2]) for step in steps)
    assert kinds["before COMMIT"] == kinds["after COMMIT"] >= 3  # a submit, a start and an end at least
    assert kinds["before INSERT"] >= 1
    assert kinds["before UPDATE"] >= 2


def test_a_submit_is_acknowledged_only_after_its_commit(
    app: Mainspring, charge: JobFunction[[int], None], ledger: Ledger
) -> None:
    seen: dict[tuple[bool, bool], int] = Counter()
    for crash in every_crash(app, lambda: charge.submit(42), prepare=ledger.clear):
        with crash.recovered():
            is_stored = sum(app.counts().values()) == 1
            seen[bool(crash.acknowledged), is_stored] += 1
    assert set(seen) == {(False, False), (False, True), (True, True)}


def test_the_jobs_of_a_dead_process_run_again_at_once(app: Mainspring, charge: JobFunction[[int], None]) -> None:
    crashed: set[int] = set()
    for crash in every_crash(app, lambda: charge.submit(42), start=NOON):
        with crash.recovered() as travel:
            assert travel.now == NOON
            crashed |= {info.crashes for info in app.jobs()}
            assert app.counts()[JobStatus.RUNNING] == 0
    assert crashed == {0, 1}


# -- scenarios


def test_delays_retries_and_chains_run_to_their_end(app: Mainspring) -> None:
    seen: list[str] = []

    @app.job(name="second", retry=Retry(max_attempts=3, base=3_600, jitter=0))
    def second() -> None:
        if current_job().attempt == 1:
            raise ConnectionError("away")
        seen.append("second")

    @app.job(name="first")
    def first() -> None:
        second.options(unique="second", delay=86_400).submit()

    for crash in every_crash(app, lambda: first.after(60).submit(), prepare=seen.clear):
        with crash.recovered():
            assert "second" in seen or not crash.acknowledged
            assert app.counts()[JobStatus.PENDING] == 0


def test_a_bulk_submit_is_acknowledged_as_a_whole(app: Mainspring, charge: JobFunction[[int], None]) -> None:
    for crash in every_crash(app, lambda: charge.submit_many([(1,), (2,), (3,)])):
        assert len(crash.acknowledged) in (0, 3)
        with crash.recovered():
            assert_submitted(charge, times=3) if crash.acknowledged else None


def test_an_asynchronous_submit_dies_too(
    app: Mainspring, charge_once: JobFunction[[int], None], ledger: Ledger
) -> None:
    runs = 0
    for crash in every_crash(app, lambda: asyncio.run(submit(charge_once)), prepare=ledger.clear):
        with crash.recovered():
            assert ledger.charges == [42] or not crash.acknowledged
        runs += 1
    assert runs > 10


async def submit(job: JobFunction[[int], None]) -> None:
    await job.submit_async(42)


def test_schedules_stand_still(app: Mainspring, charge_once: JobFunction[[int], None], ledger: Ledger) -> None:
    @app.every(1)
    def tick() -> None:
        ledger.charges.append(0)

    charge_never_twice(app, charge_once, ledger)


def test_code_that_catches_exceptions_does_not_outlive_its_process(
    app: Mainspring, charge: JobFunction[[int], None]
) -> None:
    caught: list[Exception] = []

    def scenario() -> None:
        try:
            charge.submit(42)
        except Exception as error:  # as a web framework does
            caught.append(error)

    assert len(list(every_crash(app, scenario))) > 10
    assert caught == []


def test_everything_after_the_crash_is_refused(app: Mainspring, charge: JobFunction[[int], None]) -> None:
    deaths: list[str] = []

    def scenario() -> None:
        try:
            charge.submit(1)
        except ProcessDied as death:
            deaths.append(str(death))
            with pytest.raises(ProcessDied):
                charge.submit(2)
            with pytest.raises(EngineUnavailable, match="died"):
                app.schedules.put("tick", charge, "@daily", arguments=(3,))
            raise

    for crash in every_crash(app, scenario):
        with crash.recovered():
            assert len(app.jobs()) <= 1
            assert app.schedules.list() == []
    assert deaths


def test_what_a_scenario_raises_ends_the_test(app: Mainspring) -> None:
    def scenario() -> None:
        raise LookupError("my own fault")

    with pytest.raises(LookupError, match="my own fault"):
        next(every_crash(app, scenario))


def test_a_world_is_prepared_before_each_run(plain: Plain) -> None:
    assert plain.prepared == len(plain.crashes)


# -- what is checked without being asked


def test_a_job_that_was_acknowledged_and_is_gone_is_reported(
    app: Mainspring, charge: JobFunction[[int], None]
) -> None:
    def scenario() -> None:
        handle = charge.after(60).submit(42)
        handle.cancel()
        app.manager().change(Delete(handle.id))

    with pytest.raises(AssertionError, match="was acknowledged, and is gone"):
        list(every_crash(app, scenario))


def test_a_job_that_the_next_process_loses_is_reported(app: Mainspring, charge: JobFunction[[int], None]) -> None:
    @app.job(name="forget")
    def forget() -> None:
        app.manager().change_all([CancelJob("victim"), Delete("victim")])

    def scenario() -> None:
        charge.options(id="victim", delay=3_600).submit(42)
        forget.after(60).submit()

    with pytest.raises(AssertionError, match="victim was acknowledged, and is gone"):
        list(every_crash(app, scenario))


def test_recovery_is_checked_even_without_a_request(plain: Plain) -> None:
    assert all(crash.is_recovered for crash in plain.crashes)


# -- what is left


def test_the_application_is_as_before_between_crashes_and_after_them(
    app: Mainspring, charge: JobFunction[[int], None]
) -> None:
    own = charge.submit(1)
    for crash in every_crash(app, lambda: charge.submit(42)):
        assert [info.id for info in app.jobs()] == [own.id]
        with crash.recovered():
            assert own.id not in [info.id for info in app.jobs()]
    assert [info.id for info in app.jobs()] == [own.id]


def test_a_failing_check_leaves_the_application_as_before(
    app: Mainspring, charge: JobFunction[[int], None]
) -> None:
    crashes = every_crash(app, lambda: charge.submit(42))
    with pytest.raises(ZeroDivisionError), next(crashes).recovered():
        _ = 1 // 0
    assert len(app.jobs()) == 0


def test_the_next_process_may_be_used(
    app: Mainspring, charge_once: JobFunction[[int], None], ledger: Ledger
) -> None:
    for crash in every_crash(app, lambda: charge_once.submit(42), prepare=ledger.clear):
        with crash.recovered() as travel:
            handle = charge_once.after(60).submit(43)
            travel.fast_forward(minutes=1)
            assert handle.status() is JobStatus.COMPLETED


def test_two_restarts_are_as_good_as_one(
    app: Mainspring, charge_once: JobFunction[[int], None], ledger: Ledger
) -> None:
    for crash in every_crash(app, lambda: charge_once.submit(42), prepare=ledger.clear):
        with crash.recovered():
            before = list(ledger.charges)
        with crash.recovered():
            assert ledger.charges == before


def test_no_thread_and_no_file_is_left(
    app: Mainspring, charge: JobFunction[[int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = active_count()
    for _ in every_crash(app, lambda: charge.submit(42)):
        pass
    assert active_count() <= before
    assert list(tmp_path.iterdir()) == []


def test_the_dead_are_silent_and_loggers_are_as_before(
    app: Mainspring, charge: JobFunction[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("mainspring")
    before = logger.level
    for crash in every_crash(app, lambda: charge.submit(42)):
        with crash.recovered():
            assert logger.level == before
    assert caplog.records == []
