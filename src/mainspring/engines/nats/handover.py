"""Hand-overs: a job that ends passes its place under a limiter to the next job, without an atomic batch.

An atomic batch costs a server with one replica and file storage some milliseconds, and the server refuses the
whole batch if another process has changed one of its records. A job that ends under one limiter needs no atomic
batch. Its writes are stored in three steps, and each step stores the writes of many jobs at once:

1. the record of the ended job, with its outcome;
2. the record of the limiter, which names the next job instead of the ended job;
3. the record of the next job, which is ready now, and the message of the next job in its lane.

After step 3, the message of the ended job is acknowledged. If the process dies before that, the server delivers
this message again, and `AdmissionControl.finish` does the missing steps. The record of the limiter decides which
steps are missing, because it has the ids of all jobs that the limiter has admitted (`Limiter.is_exact`). A process
that takes a job out of `holders` also writes the record of that job. Step 3 writes the record of the next job only
if this record has not changed since it was read. So step 3 undoes no later decision.

The message of step 3 has no data, because other messages may be stored between the record and this message. (A
message of an atomic batch has data.) A header of the message names the limiter, in case the record of the job is
deleted before the hand-over is complete.

    the limiter names       the record of that job says             then
    an ended job            the job has ended                       steps 2 and 3 are missing
    the next job            the job waits for this limiter          step 3 is missing
    the next job            the job is ready                        the message of step 3 may be missing

A job does not rely on that alone: the first job that would wait for a limiter takes the place of a holder that has
ended (`Admitter._release_ended`).

Version 0.1 cannot complete a hand-over. So a process stores atomic batches for `OLD_SECONDS` after it has read a
limiter that version 0.1 has written.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.deliveries import LIMITER_HEADER
from mainspring.engines.nats.limiters import READY, JobAdmission, Limiters, admission_of, limiters_of
from mainspring.engines.nats.transaction import OrderedWrites, Transaction
from mainspring.engines.nats.write_batch import Write
from mainspring.jobs.limits import family_of
from mainspring.jobs.timestamps import MICROSECONDS

OLD_SECONDS = 60


class FleetVersion(Struct):
    """Detects whether processes of version 0.1 use the same limits: they cannot complete hand-overs.

    A hand-over passes the place of an ended job to the next one.
    """

    last_old: int | None = None
    """The instant at which this process last read a limiter that version 0.1 has written; None if never."""

    def has_old(self, limiters: Limiters) -> bool:
        """Return whether version 0.1 has written one of these limiters, or one read in the last `OLD_SECONDS`.

        A limiter is the record of a sequence or limit. If version 0.1 has written one of these, store the current
        time in `last_old`.
        """
        if limiters.has_old:
            self.last_old = limiters.now
        return self.last_old is not None and limiters.now - self.last_old < OLD_SECONDS * MICROSECONDS


def order_writes(transaction: Transaction, limiters: Limiters) -> OrderedWrites | None:
    """Return the writes of a transaction in the order of a hand-over; None if they need an atomic batch.

    A hand-over stores that a job has ended, then that the next job of the sequence or limit is admitted.
    """
    batch, names = transaction.batch, transaction.names
    if batch.writes or batch.sends or batch.has_callbacks:
        return None
    ordered = OrderedWrites()
    for write in transaction.conditional_writes():
        limiter = limiters.saved.get(write.subject)
        if limiter is not None:
            if limiter.name not in limiters.exact or not limiter.is_exact or limiter.interval or limiter.reserved:
                return None
            ordered.limiters.append(write)
            continue
        job = transaction.job_at(write.subject) if write.subject.startswith(names.jobs) else None
        own = () if job is None else limiters_of(job)
        if job is None or len(own) > 1:
            return None
        ordered.keys[write.subject] = names.limiter(family_of(own[0]), own[0]) if own else ""
        ready = transaction.ready_of(write.subject)
        if job.is_over and ready is None:
            ordered.ended.append(write)
        elif ready is not None and own and _is_simple(admission_of(job)):
            headers = {LIMITER_HEADER: ordered.keys[write.subject]}
            ordered.ready.append((write, Write(ready, b"", headers=headers)))
        else:
            return None
    return ordered


def _is_simple(admission: JobAdmission) -> bool:
    return admission.state == READY and not admission.changed_by_start
