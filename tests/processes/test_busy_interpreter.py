"""Handlers that compute on every thread of a worker: it is slower, and not taken for dead."""

from statistics import median

from tests.processes.harness import Site
from tests.processes.scenario_busy import compute_beside_a_worker, time_settles


def test_no_job_is_rescued_from_a_worker_that_computes_on_every_thread(site: Site) -> None:
    compute_beside_a_worker(site, seconds=4)


def test_settling_200_jobs_beside_handlers_that_compute_takes_less_than_100_ms(site: Site) -> None:
    milliseconds = time_settles(site)
    assert median(milliseconds) < 100, milliseconds
