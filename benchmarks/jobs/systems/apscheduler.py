"""APScheduler on SQLite through SQLAlchemy, as it ships.

A running scheduler does not notice what another process stores, so jobs are stored by one that is paused, and the
worker is started afterwards.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from benchmarks.jobs.systems.system import SERVED, System


class APScheduler(System):
    key = "apscheduler"
    name = "APScheduler"
    setting = "FULL, rollback journal"
    has_bulk = False
    notices_others = False
    submits = 1_000
    drained = 2_000
    pending = 10_000  # it stores about 700 in a second

    def open(self, store: Path) -> None:
        self._scheduler = self.application(store)
        self._scheduler.start(paused=True)

    def application(self, store: Path) -> Any:
        return BackgroundScheduler(
            jobstores={"default": SQLAlchemyJobStore(url=f"sqlite:///{store}")},
            job_defaults={"misfire_grace_time": None},
            timezone=UTC,
        )

    def submit(self, value: int, due: float | None = None) -> None:
        when = {} if due is None else {"run_date": datetime.fromtimestamp(due, UTC)}
        self._scheduler.add_job("benchmarks.jobs.workload:work", "date", args=(value,), **when)

    def worker_command(self) -> list[str]:
        run = f"from threading import Event; from {SERVED} import {self.key} as s; s.start(); Event().wait()"
        return [sys.executable, "-c", run]

    def close(self) -> None:
        """Do nothing: shutting down a paused scheduler would run what is due."""
