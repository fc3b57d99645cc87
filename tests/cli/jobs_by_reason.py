"""A store with a job for every cause for which a job may be where it is; each is named after its cause."""

from __future__ import annotations

from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.commands import ChangeCallbackPause, Replay
from mainspring.jobs.engine import Demand, Engine
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, Lease, OutcomeKind, UniqueKey
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench, seconds

WORK = "shop.work"
HELD = "shop.held"
SLOW = "shop.slow"
CALL = "shop.call"
HOUR = 3_600
RATE, FULL = "rate of handler shop.mail", "concurrency of handler shop.fetch"


class JobsByReason:
    """Brings jobs to where they are, on an engine without other users, by workers that run nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._bench = Bench(engine, ManualClock())
        self._worker = self._bench.enroll(WORK, HELD, SLOW, queues=("default", "held"), timeouts={SLOW: 1_000})

    def make_all(self) -> None:
        """Make every job while there is a worker."""
        self._end_some()
        self._start_some()
        self._hold_some_back()
        bench = self._bench
        bench.submit("queued", type=WORK)
        bench.submit("unknown", type="shop.gone")
        bench.submit("unserved", type=WORK, queue="orders")

    def dismiss_workers(self) -> None:
        """Let all workers die: the jobs that were running are abandoned."""
        self._engine.leave(self._worker)

    def _take(self, job_id: str, **options: object) -> Lease:
        """Submit a job and start it."""
        self._bench.submit(job_id, type=WORK, **options)
        (lease,) = self._bench.take_when_there(self._worker, 1, WORK)
        return lease

    def _settle(self, job_id: str, kind: OutcomeKind, error: str | None = None, **options: object) -> None:
        lease = self._take(job_id, **options)
        cause = Cause.FAILURE if kind in (OutcomeKind.FAILED, OutcomeKind.RETRY) else None
        due = self._bench.now + seconds(HOUR) if kind is OutcomeKind.RETRY else None
        assert self._bench.settle(self._worker, lease, kind, error=error, cause=cause, due=due)

    def _end_some(self) -> None:
        bench = self._bench
        self._settle("completed", OutcomeKind.COMPLETED)
        self._settle("failed", OutcomeKind.FAILED, "ValueError: no such order")
        self._settle("replayed", OutcomeKind.FAILED, "ValueError: no such order")
        assert bench.change(Replay("replayed", "replay", bench.now + seconds(HOUR))).is_done
        unique = UniqueKey("nightly", (JobStatus.PENDING,))
        self._settle("blocked", OutcomeKind.FAILED, "ValueError: no such order", unique=unique)
        bench.submit("holder", type=WORK, after=HOUR, unique=unique)
        bench.submit("canceled", type=WORK, after=HOUR)
        assert bench.cancel("canceled").is_done
        bench.submit("expired", type=WORK, after=-1, expires=-0.5)
        bench.take(self._worker, WORK)
        self._settle("quarantined", OutcomeKind.FAILED, "quarantined: 3 workers died while they ran it")

    def _start_some(self) -> None:
        self._settle("retrying", OutcomeKind.RETRY, "ValueError: no such order")
        self._take("running")
        self._bench.submit("overtime", type=SLOW)
        assert len(self._bench.take_when_there(self._worker, 1, SLOW)) == 1
        self._take("front", sequence="ann")
        self._bench.submit("behind", type=WORK, sequence="ann")
        other = self._bench.enroll("shop.doomed")
        self._bench.submit("abandoned", type="shop.doomed")
        self._bench.take_when_there(other, 1, "shop.doomed")
        self._engine.leave(other)

    def _hold_some_back(self) -> None:
        bench = self._bench
        bench.submit("later", type=WORK, after=HOUR)
        bench.submit("paused", type=WORK, queue="held")
        bench.pause("held")
        bench.submit("put-off", type=CALL, after=HOUR)
        end = bench.now + seconds(HOUR)
        pause = CallbackPauseRecord("hooks.example.com", CALL, None, 503, bench.now, end)
        assert bench.arrange(ChangeCallbackPause(None, pause))
        bench.limit(RATE, 1, per=HOUR)
        bench.limit(FULL, 1)
        for job_id, family in (("spender", RATE), ("occupant", FULL)):
            self._take(job_id, limits=(bucket_of(family),))
        bench.submit("rated", type=WORK, limits=(bucket_of(RATE),))
        bench.submit("full", type=WORK, limits=(bucket_of(FULL),))
        bench.submit("taken", type=HELD, after=HOUR)
        lead = seconds(2 * HOUR)
        self._engine.take(self._worker, [Demand((HELD,), 0, 1)], lead=lead, start_lead=0)
