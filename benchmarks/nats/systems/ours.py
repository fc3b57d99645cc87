"""Mainspring itself, on the server that the store names."""

import sys
from pathlib import Path

from benchmarks.jobs.systems.ours import Ours
from benchmarks.jobs.systems.system import THREADS
from benchmarks.nats.systems.asynchronous import SERVED
from benchmarks.nats.workload import hold, work
from mainspring import Mainspring


class OnServer(Ours):
    def __init__(self) -> None:
        super().__init__("full")
        self.key = "mainspring"
        self.setting = "NATS"

    def application(self, store: Path) -> Mainspring:
        app = Mainspring(store.read_text(), threads=THREADS)
        self.job = app.job(name="work")(work)
        self.hold = app.job(name="hold")(hold)
        return app

    def worker_command(self) -> list[str]:
        return [sys.executable, "-m", "mainspring", "run", f"{SERVED}:{self.key}"]
