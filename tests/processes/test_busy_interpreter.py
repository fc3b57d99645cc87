"""Handlers that compute on every thread of a worker: it is slower, and not taken for dead."""

from tests.processes.apps.busy import ROUNDS
from tests.processes.sandbox import Sandbox
from tests.processes.scenario_busy import compute_beside_a_worker, time_settles
from tests.support import amount


def test_no_job_is_rescued_from_a_worker_that_computes_on_every_thread(sandbox: Sandbox) -> None:
    compute_beside_a_worker(sandbox, seconds=amount(2, thorough=3))


def test_jobs_are_settled_beside_handlers_that_compute(sandbox: Sandbox) -> None:
    assert len(time_settles(sandbox)) == ROUNDS
