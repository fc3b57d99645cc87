"""Checks workers, handlers, queues and quotas; late and blocked jobs, too many jobs due at once, dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mainspring.doctor.findings import NAMED, Finding, error, in_microseconds, info, ok, some, warning
from mainspring.doctor.snapshot import READ, Snapshot
from mainspring.jobs.backlog import Backlog
from mainspring.jobs.blocked_jobs import BlockedGroup
from mainspring.jobs.limits import describe_bucket
from mainspring.jobs.records import WorkerRecord
from mainspring.jobs.status import JobStatus
from mainspring.jobs.store_statistics import MAX_COUNTED, SLOT_MICROSECONDS
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.plurals import format_count
from mainspring.similar_names import find_similar

LATE = 60 * MICROSECONDS
NEARLY_FULL = 0.8
START = ("Start one:", ("run",))


def check_workers(snapshot: Snapshot, wanted: int = 0) -> Iterator[Finding]:
    """Report the workers that run, and those that died or hang; warn if fewer than `wanted` run.

    Report an error instead if no worker runs, and jobs are due or have lost their worker.
    """
    alive = snapshot.alive
    lost = [worker for worker in snapshot.workers if worker not in alive]
    left = [] if alive else [*_due(snapshot), *_abandoned(snapshot)]
    if lost and not left:
        yield _about_lost(lost, snapshot.now, has_others=bool(alive))
    if left:
        yield error(
            f"no worker runs, and {' and '.join(left)}", "Jobs are stored, and no worker starts them.", *START
        )
    elif len(alive) < wanted:
        names = some([_name(worker) for worker in alive]) or "none"
        yield warning(
            f"{len(alive)} of {wanted} wanted workers run: {names}",
            "The others rescue the jobs of a worker that dies: the fewer they are, the longer jobs wait.",
            *START,
        )
    elif alive:
        yield ok(f"{format_count(len(alive), 'worker')}: {some([_name(worker) for worker in alive])}")
    elif not lost:
        yield info("no worker runs; no job is due", "Jobs that become due wait for a worker.", *START)


def warn_of_uncounted(wanted: int) -> Finding:
    """Return the warning that live workers could not be counted, although `wanted` are required."""
    return warning(
        f"it is not known whether {format_count(wanted, 'worker')} run",
        "Workers are counted in the store, which could not be examined.",
        "Do first what the finding `jobs` or the finding of the store says.",
    )


def _due(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.waiting:
        oldest = min(waiting.oldest for waiting in snapshot.waiting)
        due = format_count(sum(waiting.count for waiting in snapshot.waiting), "job is due", "jobs are due")
        yield f"{due}, the oldest for {in_microseconds(snapshot.now - oldest)}"


def _abandoned(snapshot: Snapshot) -> Iterator[str]:
    running = (snapshot.counts or {}).get(JobStatus.RUNNING, 0)
    if running:
        yield format_count(running, "job has lost its worker", "jobs have lost their workers")


def _about_lost(lost: Sequence[WorkerRecord], now: int, *, has_others: bool) -> Finding:
    names = some([f"{_name(worker)}, {_silence(worker, now)}" for worker in lost])
    what = f"{format_count(len(lost), 'worker')} died or stopped responding: {names}"
    if has_others:
        return info(
            what,
            "The other workers rescue the jobs of such a worker: within seconds if it died, after 45 s without a "
            "heartbeat (on NATS, the lease) if it hangs.",
            "If this finding comes back, find out what kills or suspends workers: lack of memory, a debugger, "
            "a suspended machine.",
        )
    return warning(
        what, "The jobs of such a worker wait until another worker rescues them, and no other worker runs.", *START
    )


def _silence(worker: WorkerRecord, now: int) -> str:
    return (
        f"no heartbeat for {in_microseconds(max(0, now - worker.heartbeat))}"
        if worker.heartbeat
        else "stopped or died without handing its jobs back"
    )


def _name(worker: WorkerRecord) -> str:
    kind = f"process {worker.info.process}" if worker.info.remote is None else "remote"
    return f"{worker.number} ({worker.info.name}, {kind})"


def check_handlers(snapshot: Snapshot) -> Iterator[Finding]:
    """Report due jobs whose handler no running worker has, and handlers of the application that no worker has.

    Also report stored jobs for which the application has no handler.
    """
    known, has_workers = snapshot.known, bool(snapshot.alive)
    unserved = list(_about_remote(snapshot))
    yield from unserved
    unknown = [
        waiting
        for waiting in snapshot.waiting
        if has_workers and waiting.type not in known and waiting.type not in snapshot.remote
    ]
    if unknown:
        yield error(
            f"no worker has a handler for {some(sorted({waiting.type for waiting in unknown}))}, "
            f"and {_wait(unknown)} for it",
            "Those jobs never start.",
            "Start a worker of the application that has the handler; if the handler was renamed, give it its old "
            "name, too: @app.job(aliases=[...]).",
        )
    handlers = snapshot.handlers
    if handlers is not None:
        wanted = {waiting.type for waiting in snapshot.waiting} | snapshot.pending
        foreign = sorted(wanted - handlers - {waiting.type for waiting in unknown})
        if foreign:
            yield warning(
                f"this application has no handler {some(foreign)}, and jobs are stored for it",
                "Workers that run this code do not run these jobs.",
                "If the handler was renamed: @app.job(aliases=[...]). If another application has it, ignore this.",
            )
        idle = sorted(handlers - known - snapshot.remote) if has_workers else []
        if idle:
            yield warning(
                f"no worker has the handler {some(idle)} of this application",
                "The jobs of this handler wait. The workers may run older code.",
                "Restart the workers with this code.",
            )
        if unknown or foreign or idle or unserved:
            return
    if not unknown:
        yield ok(
            "workers have handlers for all due jobs"
            if has_workers
            else "no worker runs, so handlers were not compared"
        )


def _about_remote(snapshot: Snapshot) -> Iterator[Finding]:
    """Report the types of `app.remote_job` that no remote worker serves."""
    unserved = snapshot.remote - snapshot.known
    waiting = [backlog for backlog in snapshot.waiting if backlog.type in unserved]
    if waiting:
        yield error(
            f"no remote worker serves {some(sorted({backlog.type for backlog in waiting}))}, and {_wait(waiting)} "
            "for it",
            "Those jobs never start: workers of the application do not run them.",
            "Start a remote worker, which enrolls with POST /api/v1/workers: docs/http-workers.md.",
        )
    elif unserved:
        yield info(
            f"no remote worker serves {some(sorted(unserved))}",
            "Jobs of such a type that become due wait for a remote worker.",
            "Start a remote worker, which enrolls with POST /api/v1/workers: docs/http-workers.md.",
        )


def check_queues(snapshot: Snapshot) -> Iterator[Finding]:
    """Check whether running workers serve the queues of due jobs, and those of the application's handlers."""
    if not snapshot.alive:
        yield ok("no worker runs, so queues were not compared")
        return
    unserved = [waiting for waiting in snapshot.waiting if _is_unserved(waiting, snapshot)]
    for queue in sorted({waiting.queue for waiting in unserved}):
        of_queue = [waiting for waiting in unserved if waiting.queue == queue]
        yield error(
            f"no worker {_with_handler(queue, snapshot)}serves queue {queue}, and {_wait(of_queue)} in it",
            f"Those jobs never start. {_served(queue, snapshot)}",
            "Start a worker that serves the queue:",
            ("run", "--queues", queue),
        )
    idle = sorted(
        queue
        for queue in snapshot.handler_queues
        if not any(worker.info.serves(queue) for worker in snapshot.alive)
        and queue not in {waiting.queue for waiting in unserved}
    )
    if idle:
        yield warning(
            f"no worker serves queue {some(idle)}, which handlers of this application use",
            f"The jobs of these handlers wait. {_served(idle[0], snapshot)}",
            "Start a worker that serves the queue:",
            ("run", "--queues", idle[0]),
        )
    if not unserved and not idle:
        yield ok("workers serve the queues of all due jobs")


def _is_unserved(waiting: Backlog, snapshot: Snapshot) -> bool:
    """Return whether running workers have the handler of these jobs, but none of those serves their queue."""
    able = [worker.info for worker in snapshot.alive if waiting.type in worker.info.types]
    return bool(able) and not any(info.serves(waiting.queue) for info in able)


def _with_handler(queue: str, snapshot: Snapshot) -> str:
    is_served = any(worker.info.serves(queue) for worker in snapshot.alive)
    return "that has the handler " if is_served else ""


def _served(queue: str, snapshot: Snapshot) -> str:
    """Return a sentence with the queues that workers serve, and a question if one has a name like `queue`."""
    served = sorted({name for worker in snapshot.alive for name in worker.info.queues or ()})
    similar = find_similar(queue, served)
    question = f" Is {similar[0]} a typing error?" if similar else ""
    return f"Workers serve {some(served)}.{question}"


def _wait(backlogs: Sequence[Backlog]) -> str:
    return format_count(sum(backlog.count for backlog in backlogs), "job waits", "jobs wait")


def check_lateness(snapshot: Snapshot) -> Iterator[Finding]:
    """Warn about jobs that wait for over a minute: due jobs that a running worker can run, and blocked jobs.

    Blocked jobs are those behind a sequence or a limit here. If they were not counted, a finding says so.
    """
    known = snapshot.known
    late = [
        waiting
        for waiting in snapshot.waiting
        if waiting.type in known and snapshot.now - waiting.oldest > LATE and not _is_unserved(waiting, snapshot)
    ]
    blocked = [each for each in snapshot.blocked if snapshot.now - each.since > LATE]
    if late:
        yield _about_late(late, snapshot.now)
    for each in blocked[:NAMED]:
        yield _about_blocked(each, snapshot.now)
    rest, others = blocked[NAMED:], "other sequences or limits"
    if rest:
        yield warning(
            f"{_wait_behind(rest)} behind {format_count(len(rest), 'other sequence or limit', others)}",
            "They start when the jobs before them have ended.",
            "To list the running jobs:",
            ("jobs", "list", "--status", "running"),
        )
    if snapshot.counts is None:
        yield info(
            "jobs that wait behind sequences and limits were not counted",
            "The store has too many jobs to count them quickly.",
            "To count them, however long it takes:",
            ("doctor", "--thorough"),
        )
    elif not late and not blocked:
        yield ok("no job that a worker can run is late")


def _wait_behind(blocked: Sequence[BlockedGroup]) -> str:
    return format_count(sum(each.count for each in blocked), "due job waits", "due jobs wait")


def _about_blocked(blocked: BlockedGroup, now: int) -> Finding:
    """Return a warning that names the jobs which block others, with commands to explain and to cancel them."""
    first = blocked.by[0]
    waits = f"{_wait_behind([blocked])}, the oldest ({blocked.oldest}) for {in_microseconds(now - blocked.since)},"
    commands = (("explain", *blocked.by[:NAMED]), ("jobs", "cancel", first))
    if blocked.bucket is None:
        what = f"{waits} in sequence {blocked.sequence!r} behind job {first}"
        reason = "Jobs of a sequence run one after another: they start when that job has ended."
    else:
        what = f"{waits} for the {describe_bucket(blocked.bucket)}, which is used up by {some(blocked.by)}"
        reason = "They start when one of these running jobs has ended."
    return warning(what, reason, "To see why it has not ended, and to request its stop:", *commands)


def _about_late(late: Sequence[Backlog], now: int) -> Finding:
    oldest = min(late, key=lambda waiting: waiting.oldest)
    return warning(
        f"{_wait(late)} although workers run, the oldest for "
        f"{in_microseconds(now - oldest.oldest)}: {oldest.type} in queue {oldest.queue}",
        "The workers do not keep up.",
        "Give the workers more threads (--threads 16), or start more workers. To list the running jobs:",
        ("jobs", "list", "--status", "running"),
    )


def check_paused(snapshot: Snapshot) -> Iterator[Finding]:
    """Report each paused queue, as a warning if due jobs wait in it: the pause may have been forgotten."""
    held = [backlog for backlog in snapshot.backlog if backlog.queue in snapshot.paused]
    for queue in sorted(snapshot.paused):
        of_queue = [backlog for backlog in held if backlog.queue == queue]
        resume = ("queues", "resume", queue)
        if of_queue:
            waits = in_microseconds(snapshot.now - min(backlog.oldest for backlog in of_queue))
            yield warning(
                f"queue {queue} is paused, and {_wait(of_queue)} in it, the oldest for {waits}",
                "No job of a paused queue starts, on any worker.",
                "To resume the queue, if the pause was forgotten:",
                resume,
            )
        else:
            yield info(
                f"queue {queue} is paused; nothing is due in it",
                "No job of this queue starts.",
                "To resume the queue:",
                resume,
            )
    if not snapshot.paused:
        yield ok("no queue is paused")


def check_quotas(snapshot: Snapshot) -> Iterator[Finding]:
    """Warn about queues whose pending jobs reach 80 % of their quota `max_depth` or more."""
    near = {
        queue: (pending, most)
        for queue, (pending, most) in sorted(snapshot.depths.items())
        if pending >= most * NEARLY_FULL
    }
    for queue, (pending, most) in near.items():
        is_full = pending >= most
        yield warning(
            f"queue {queue} has {format_count(pending, 'pending job')}, and its quota allows {most:,}",
            f"Submits to it {'raise' if is_full else 'will raise'} LimitExceeded.",
            f"Start more workers, find out why jobs wait, or raise max_depth= of app.queue({queue!r}, ...).",
            ("queues", "list", queue),
        )
    if not near:
        quotas = format_count(len(snapshot.depths), "queue") if snapshot.depths else "no queue"
        yield ok(f"{quotas} with a depth quota{': none is nearly full' if snapshot.depths else ''}")


def check_slots(snapshot: Snapshot) -> Iterator[Finding]:
    """Warn if far more scheduled jobs become due within one slot of 268 ms than in the others on average."""
    slot = snapshot.fullest_slot
    if slot is None:
        yield ok("no jobs are scheduled" if snapshot.counts is not None else "scheduled jobs were not counted")
    elif slot.is_hot:
        jobs = f"{slot.jobs:,} or more" if slot.jobs >= MAX_COUNTED else f"{slot.jobs:,}"
        yield warning(
            f"{jobs} jobs of {slot.type} in queue {slot.queue} become due within the same "
            f"{SLOT_MICROSECONDS // 1_000} ms, at {slot.at:%Y-%m-%d %H:%M:%S} UTC, {slot.at_once:,} of them at "
            f"the same instant; other slots have {slot.average:,.1f} jobs on average",
            "Workers cannot start so many jobs at once: most of them start late, and delay jobs of other types.",
            "Spread the due times: jitter= of a schedule, Retry(jitter=...), or a random part of the delay. Or "
            "let one call run many of these jobs: @app.job(batch=100).",
        )
    else:
        jobs = format_count(slot.jobs, "job", "jobs")
        yield ok(f"scheduled jobs are spread: at most {jobs} within {SLOT_MICROSECONDS // 1_000} ms")


def check_dead_letters(snapshot: Snapshot) -> Iterator[Finding]:
    """Warn about the dead letters in quarantine, which crashed three times, and report how many others there are.

    If dead letters were not counted, a finding says so.
    """
    if snapshot.counts is None:
        yield info(
            "dead letters were not counted",
            "The store has too many jobs to count them quickly.",
            "To count them, however long it takes:",
            ("doctor", "--thorough"),
        )
        return
    letters = snapshot.letters
    quarantined = [letter for letter in letters if (letter.error or "").startswith("quarantined")]
    if quarantined:
        yield warning(
            f"in quarantine after three crashes: {some([letter.id for letter in quarantined])}",
            "The process or the worker of such a job died three times while it ran; the death of a worker also "
            "interrupts its other jobs.",
            "Find out whether the job kills its process, then run it again:",
            ("dlq", "show", quarantined[0].id),
            ("jobs", "retry", quarantined[0].id),
        )
    others = [letter for letter in letters if not (letter.error or "").startswith("quarantined")]
    if others:
        age = in_microseconds(max(0, snapshot.now - max(letter.finished or 0 for letter in others)))
        # if not all letters were read, the newest is unknown
        more = " or more" if len(letters) == READ else f", the newest from {age} ago"
        yield info(
            f"{format_count(len(others), 'dead letter')}{more}",
            "Jobs that failed for good are kept until you replay or purge them, or Keep(failed=...) deletes them.",
            "Look at the dead letters; then replay or purge them:",
            ("dlq", "list"),
        )
    if not letters:
        yield ok("no dead letters")
