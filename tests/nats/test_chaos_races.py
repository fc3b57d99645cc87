"""Races between clients, workers and the server: one winner, and the loser is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mainspring import DuplicateJob, JobStatus, Mainspring, Unique
from tests.nats.apps import timed
from tests.nats.chaos_workers import ChaosWorkers, projection_in
from tests.nats.scenario_races import SPREAD, race_cancels, race_reschedules
from tests.nats.servers import MakeServers, Servers
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE, amount, at_once

pytestmark = pytest.mark.long

CALLS = amount(100, thorough=200)
SECONDS = CALLS / 40
OCCURRENCES = amount(5, thorough=10)
ROUNDS = amount(20, thorough=50)
SPREADS = [SPREAD, 2 * SPREAD, 8 * SPREAD]  # one is wide enough for a machine on which everything comes late


def make_sandbox(folder: Path, spread: float) -> Sandbox:
    own = folder / f"spread-{spread}"
    own.mkdir()
    return Sandbox(own)


def test_a_cancel_that_said_true_is_never_followed_by_a_run(tmp_path: Path, make_nats_server: MakeServers) -> None:
    servers = make_nats_server()
    for spread in SPREADS:
        with make_sandbox(tmp_path, spread) as site:
            races = race_cancels(site, servers, count=CALLS, seconds=SECONDS, seed=21, spread=spread)
        races.check_cancels()
        if 0.1 < races.share < 1:
            return
    pytest.fail("the calls did not come around the critical moments")


def test_a_job_that_was_put_off_does_not_run_at_its_old_time_and_runs_once_at_the_new(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    servers = make_nats_server()
    for spread in SPREADS:
        with make_sandbox(tmp_path, spread) as site:
            races = race_reschedules(site, servers, count=CALLS, seconds=SECONDS, seed=22, spread=spread)
        races.check_reschedules()
        if 0.1 < races.share < 1:
            return
    pytest.fail("the calls did not come around the critical moments")


def test_three_workers_run_each_second_of_a_cron_once(tmp_path: Path, make_nats_server: MakeServers) -> None:
    servers = make_nats_server()
    options = "lease=10&timeout=60"
    timed.app.url = f"{servers.url}?{options}&{projection_in(tmp_path)}"
    with Sandbox(tmp_path) as site, timed.app as app:
        workers = ChaosWorkers(site, servers, options=options, module="timed", workers=3, proxied=0)
        workers.start()
        workers.wait_for_lines(2 * OCCURRENCES)  # a line for the start and one for the end of each
        app.schedules.pause("second")
        for job in app.jobs(limit=1_000):
            assert app.handle(job.id).wait(PATIENCE) is JobStatus.COMPLETED
        workers.stop()
    seconds = Counter(int(entry.argument.partition("/")[2]) for entry in site.run_log() if entry.event == "start")
    assert set(seconds.values()) == {1}
    assert sorted(seconds) == list(range(min(seconds), max(seconds) + 1))
    assert len(seconds) >= OCCURRENCES


# -- two clients


def make_client(servers: Servers, folder: Path) -> Mainspring:
    return Mainspring(f"{servers.url}?lease=10&timeout=60&{projection_in(folder)}")


def echo(number: int) -> int:
    return number


def test_of_two_clients_that_submit_one_id_at_the_same_time_one_is_told(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    servers = make_nats_server()
    with make_client(servers, tmp_path) as one, make_client(servers, tmp_path) as other:
        jobs = [client.job(name="echo")(echo) for client in (one, other)]

        def submit(number: int, round_: int) -> str:
            try:
                return jobs[number].options(id=f"job-{round_}").after(3_600).submit(number).id
            except DuplicateJob as error:
                return f"duplicate of {error.existing_id}"

        for round_ in range(ROUNDS):
            answers = at_once(lambda: submit(0, round_), lambda: submit(1, round_))  # noqa: B023 - called at once
            assert sorted(answers) == [f"duplicate of job-{round_}", f"job-{round_}"]
            winner = answers.index(f"job-{round_}")
            assert one.get(f"job-{round_}").arguments == {"number": winner}
        assert one.counts()["PENDING"] == other.counts()["PENDING"] == ROUNDS


def test_of_two_clients_that_submit_one_unique_key_at_the_same_time_both_get_the_same_job(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    servers = make_nats_server()
    with make_client(servers, tmp_path) as one, make_client(servers, tmp_path) as other:
        jobs = [client.job(name="echo", unique=Unique(by="number"))(echo) for client in (one, other)]
        for number in range(ROUNDS):
            answers = at_once(
                lambda: jobs[0].after(3_600).submit(number).id,  # noqa: B023 - called at once
                lambda: jobs[1].after(3_600).submit(number).id,  # noqa: B023 - called at once
            )
            assert len(set(answers)) == 1
        assert one.counts()["PENDING"] == other.counts()["PENDING"] == ROUNDS
