"""Handlers in processes of their own, on workers that are killed at random."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.processes.apps.crunching import app, belong
from tests.processes.fleet import Figures, Fleet
from tests.processes.harness import Site
from tests.support import PATIENCE


@dataclass(frozen=True)
class InProcesses:
    """What came of jobs in processes."""

    figures: Figures
    left_behind: list[int]
    """Processes that have outlived their worker."""


def run_in_processes(site: Site, *, count: int, kills: int, seed: int) -> InProcesses:
    """Let jobs run in processes while their workers are killed."""
    with app:
        ids = belong.submit_many([(number,) for number in range(count)])
        fleet = Fleet(site, "crunching", seed=seed)
        fleet.start_together(app, "default")
        fleet.kill_at_random(kills, until=count * 2)
        for job_id in ids:
            app.handle(job_id).wait(PATIENCE)
        kills = len(fleet.killed)
        # A process dies with its worker, whose end is the one that is known.
        fleet.killed |= {
            entry.process: fleet.killed[worker]
            for entry in site.ledger()
            if (worker := int(entry.argument.partition("/")[2])) in fleet.killed
        }
        aftermath = fleet.finish(app, ids)
    return InProcesses(
        figures=replace(aftermath.figures(), kills=kills),
        left_behind=_find_alive({run.process for run in aftermath.runs}),
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
