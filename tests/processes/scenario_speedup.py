"""How much faster two processes of a worker are than one, beside what two bare processes gain on this machine."""

from __future__ import annotations

from math import inf

from mainspring import JobStatus
from tests.processes.apps.crunching import app, come_together, compute
from tests.processes.pipe_gates import make_gate
from tests.processes.run_log import Entry
from tests.processes.sandbox import READY, Child, Sandbox
from tests.processes.worker_processes import WorkerProcesses
from tests.support import PATIENCE

JOBS = 4
WORK = 800_000  # steps of a job: a tenth of a second, about


def compare_processes(sandbox: Sandbox, *, rounds: int) -> tuple[float, float]:
    """Return how many times as fast two are as one: with jobs, and bare. The best of all rounds counts."""
    make_gate("gate")
    make_gate("meeting")
    with app:
        crew = WorkerProcesses(sandbox, "crunching")
        for queue, processes in (("one", "1"), ("two", "2")):
            crew.start_one("--queues", queue, PROCESSES=processes).expect_all(READY)
        bare = [sandbox.start_app("crunching") for _ in range(2)]
        for child in bare:
            child.expect("ready")
        compute.options(queue="one").submit(0, 1).result(PATIENCE)  # all processes are up now
        for handle in [come_together.options(queue="two").submit(number) for number in range(2)]:
            handle.result(PATIENCE)
        best = Best()
        for _ in range(rounds):
            best.note("one", measure(sandbox, "one"))
            best.note("two", measure(sandbox, "two"))
            best.note("bare one", measure_bare(bare[:1]))
            best.note("bare two", measure_bare(bare))
    return best.ratio("one", "two"), best.ratio("bare one", "bare two")


class Best:
    """The shortest time of each of several things."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def note(self, what: str, seconds: float) -> None:
        self.seconds[what] = min(seconds, self.seconds.get(what, inf))

    def ratio(self, slow: str, fast: str) -> float:
        return self.seconds[slow] / self.seconds[fast]


def measure_bare(children: list[Child]) -> float:
    """Compute as much without jobs, and return how many seconds that took."""
    for child in children:
        child.send_line(f"{JOBS * WORK // len(children)}")
    spans = [child.expect("computed").split()[1:] for child in children]
    return (max(int(end) for _, end in spans) - min(int(begin) for begin, _ in spans)) / 1e9


def measure(sandbox: Sandbox, queue: str) -> float:
    """Compute, and return how many seconds passed from the first line of the run log to the last."""
    ids = set(compute.options(queue=queue).submit_many([(number, WORK) for number in range(JOBS)]))
    for job_id in ids:
        assert app.handle(job_id).wait(PATIENCE) is JobStatus.COMPLETED
    entries: list[Entry] = [entry for entry in sandbox.run_log() if entry.job in ids]
    assert len(entries) == 2 * JOBS
    return (entries[-1].instant_ns - entries[0].instant_ns) / 1e9
