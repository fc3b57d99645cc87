"""Ours with policies: the same no-op job under limits, and in sequences. FULL, like the others of ours."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.jobs.systems.ours import Ours
from benchmarks.jobs.systems.system import batches
from benchmarks.jobs.workload import work
from mainspring import Concurrency, Mainspring, Rate
from mainspring.jobs.ids import JobIds
from mainspring.jobs.records import NewJob

TENANTS = 100
PLENTY = 1_000_000  # which nothing reaches


def work_of(value: int, tenant: int) -> None:  # noqa: ARG001 - limits go by it
    """Do nothing, with an argument."""
    work(value)


class Limited(Ours):
    """Jobs of many tenants, under limits that they hardly reach."""

    def __init__(self, key: str, policies: str, *, queue: Concurrency | None = None, **options: Any) -> None:
        super().__init__("full")
        self.key = f"limited_{key}"
        self.setting = policies
        self._queue = queue
        self._options = options
        self.tenant_of: Callable[[int], int] = lambda value: value % TENANTS

    def application(self, store: Path) -> Mainspring:
        app = super().application(store)
        self.limited = app.job(name="work of", **self._options)(work_of)
        if self._queue is not None:
            app.queue("default", concurrency=self._queue)
        return app

    def submit_many(self, values: Sequence[int], due: float | None = None) -> None:
        self.limited.submit_many([{"value": value, "tenant": self.tenant_of(value)} for value in values])


class Keyed(Ours):
    """Jobs in sequences, so many keys in turn; 0: no sequences, stored the same way.

    There is no bulk call with a key for each job, so the engine gets them as that call would give them.
    """

    def __init__(self, keys: int) -> None:
        super().__init__("full")
        self._ids = JobIds()
        self.keys = keys
        self.key = f"keyed_{keys}"
        self.setting = f"FULL, {keys:,} keys"

    def submit(self, value: int, due: float | None = None) -> None:
        job = self._at(due)
        (job.options(sequence=f"key {value % self.keys}") if self.keys else job).submit(value)

    def submit_many(self, values: Sequence[int], due: float | None = None) -> None:
        engine = self.app.manager().engine
        for batch in batches(values):
            jobs = self.make(batch, due)
            with engine.unit(durable=True):
                engine.submit(jobs)

    def make(self, values: Sequence[int], due: float | None = None) -> list[NewJob]:
        """Make what the engine stores."""
        instant = self.app.manager().engine.now() if due is None else int(due * 1e6)
        priority, queue = int(self.job.handler.options.priority), self.job.handler.options.queue
        return [
            NewJob(
                id=job_id,
                type=self.job.name,
                queue=queue,
                priority=priority,
                due=instant,
                payload=b'{"value":%d}' % value,
                codec=self.job.handler.arguments.codec,
                sequence=f"key {value % self.keys}" if self.keys else None,
            )
            for job_id, value in zip(self._ids.make(instant, len(values)), values, strict=True)
        ]


WITHOUT = Limited("not", "no limits")
BY_TENANT = Limited(
    "tenants",
    f"`Concurrency` and `Rate` by tenant, {TENANTS} tenants",
    concurrency=Concurrency(1_000, by="tenant"),
    rate=Rate(PLENTY, 1, by="tenant"),
)
LIMITED = (
    Limited("concurrency", "`Concurrency(1000)`", concurrency=Concurrency(1_000)),
    Limited("wide", "`Concurrency(1_000_000)`", concurrency=Concurrency(PLENTY)),
    Limited("rate", "`Rate(1_000_000, 1)`", rate=Rate(PLENTY, 1)),
    BY_TENANT,
    Limited("queue", "`Concurrency(1000)` of the queue", queue=Concurrency(1_000)),
)
FAIR = Limited("fair", "`Concurrency(4, by='tenant')`", concurrency=Concurrency(4, by="tenant"))
PLAIN, MANY_KEYS, FEW_KEYS, ONE_KEY = Keyed(0), Keyed(20_000), Keyed(100), Keyed(1)
VARIANTS: tuple[Ours, ...] = (WITHOUT, *LIMITED, FAIR, PLAIN, MANY_KEYS, FEW_KEYS, ONE_KEY)
