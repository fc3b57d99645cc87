"""Handlers in processes of their own, on workers that are killed at random."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.processes.apps.crunching import app, belong
from tests.processes.sandbox import Sandbox
from tests.processes.worker_processes import Figures, WorkerProcesses
from tests.support import PATIENCE


@dataclass(frozen=True)
class InProcesses:
    """What came of jobs in processes."""

    figures: Figures
    left_behind: list[int]
    """Processes that have outlived their worker."""


def run_in_processes(sandbox: Sandbox, *, count: int, kills: int, seed: int) -> InProcesses:
    """Let jobs run in processes while their workers are killed."""
    with app:
        ids = belong.submit_many([(number,) for number in range(count)])
        workers = WorkerProcesses(sandbox, "crunching", seed=seed)
        workers.start_together(app, "default")
        workers.kill_at_random(kills, until=count * 2)
        for job_id in ids:
            app.handle(job_id).wait(PATIENCE)
        kills = len(workers.killed)
        # A process dies with its worker, whose end is the one that is known.
        workers.killed |= {
            entry.process: workers.killed[worker]
            for entry in sandbox.run_log()
            if (worker := int(entry.argument.partition("/")[2])) in workers.killed
        }
        result = workers.finish(app, ids)
    return InProcesses(
        figures=replace(result.figures(), kills=kills),
        left_behind=_find_alive({run.process for run in result.runs}),
    )


def _find_alive(processes: Iterable[int]) -> list[int]:
    """Return those that do not end."""
    alive = []
    for process in processes:
        try:
            handle = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        if not select.select([handle], [], [], PATIENCE)[0]:
            alive.append(process)
        os.close(handle)
    return alive
