"""The audit trail on NATS: entries are messages of the main stream, so that they share batches with the changes.

The server stores a batch only within one stream. Therefore an entry is a message to `P.audit.<id>` in the stream
of the jobs, and a crash leaves neither a change without its entry nor an entry without its change. An entry about
a token or a worker is in the guarded stream, with their records. An entry about many jobs is replaced in each
batch by one that has all jobs so far.

Workers delete old entries when they prune. A stream that an operator of an earlier version has prepared has no
subject for entries. A process that may not update the stream then changes jobs without entries, and logs that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import islice
from typing import TypeAlias

import msgspec

from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import decode, encode
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.transaction import Transaction
from mainspring.engines.nats.write_batch import Write
from mainspring.jobs.audit import AuditEntry, AuditQuery, id_at
from mainspring.jobs.audit_drafts import AuditDraft, Place
from mainspring.jobs.commands import Arrangement, Changed, Command
from mainspring.jobs.engine import Retention
from mainspring.jobs.recurrence.schedule_records import Fired, Firing

PAGE_SIZE = 1_000
MAX_DELETED = 500  # how many entries one prune deletes because of their age
IMPORTED_AT_ONCE = 200

RecordArrangement: TypeAlias = Callable[[Transaction, Place | None], None]
"""Adds the audit entry of an arrangement to its transaction, given the type and queue of its schedule, or None."""

logger = logging.getLogger("mainspring.nats")


class NatsAudit:
    """Stores audit entries within transactions, lists them and deletes old ones."""

    def __init__(self, jetstream: JetStream, names: SubjectNames, streams: Streams) -> None:
        self._jetstream = jetstream
        self._names = names
        self._streams = streams
        self._has_warned = False

    def recorder(self, draft: AuditDraft | None) -> AuditRecorder | None:
        """Return an object that adds audit entries to transactions, as `draft` describes them; None without one.

        Also return None, and log a warning once, if the stream cannot store entries.
        """
        if draft is None:
            return None
        if self._streams.stores_audit():
            return AuditRecorder(draft)
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "changes by operators are not recorded in the audit trail: the stream %r is of an earlier version "
                "and has no subject for it; an operator updates the stream: `mainspring queues list`, with "
                "role=operator in the URL",
                self._names.stream,
            )
        return None

    def read(self, query: AuditQuery) -> list[AuditEntry]:
        """List the audit entries that match a query, the latest first."""
        return nlargest(query.limit, filter(query.matches, self._read_all()), key=lambda entry: entry.id)

    def _read_all(self) -> Iterator[AuditEntry]:
        for place in (self._names.audit, self._names.guarded_audit):
            for _, message in self._jetstream.scan_all(f"{place}*", most=PAGE_SIZE):
                entry = _decode(message.data)
                if entry is not None:
                    yield entry

    def prune(self, retention: Retention, now: int) -> bool:
        """Delete audit entries that `retention` does not keep; return whether there may be more.

        The largest number applies to entries about jobs, and again to those about tokens and workers. A role
        that may not purge subjects deletes nothing.
        """
        if not self._jetstream.settings.may_purge:
            return False
        self._prune_guarded(retention, now)
        if retention.most_audited is not None:
            self._jetstream.purge_all_but(f"{self._names.audit}*", retention.most_audited)
        if retention.audit is None:
            return False
        end = self._names.audit_entry(id_at(now - retention.audit))
        old = self._find_before(end, most=1) and self._find_before(end, most=MAX_DELETED)
        for subject in old:
            self._jetstream.purge(subject)
        return len(old) == MAX_DELETED

    def _prune_guarded(self, retention: Retention, now: int) -> None:
        """Replace the entries about tokens and workers that `retention` does not keep by messages that expire."""
        place = self._names.guarded_audit
        found = sorted(subject for subject, message in self._jetstream.scan_all(f"{place}*") if message.data)
        newest = found if retention.most_audited is None else found[-retention.most_audited :]
        end = "" if retention.audit is None else self._names.guarded_audit_entry(id_at(now - retention.audit))
        kept = {subject for subject in newest if subject >= end}
        for subject in found:
            if subject not in kept:
                self._jetstream.drop(subject)

    def _find_before(self, end: str, *, most: int) -> list[str]:
        """Return the subjects that sort before `end`, of the first `most` audit entries of the stream."""
        found = self._jetstream.scan(f"{self._names.audit}*", most=most)
        return [subject for subject, message in found if subject < end and message.data]

    def store(self, entries: Iterable[AuditEntry]) -> None:
        """Store audit entries that come from another store. An entry replaces one with the same id.

        Do nothing if the stream is of an earlier version, which cannot store entries. Raises `EngineUnavailable`
        if the server does not confirm the entries.
        """
        remaining = iter(entries if self._streams.stores_audit() else ())
        while part := list(islice(remaining, IMPORTED_AT_ONCE)):
            writes = [Write(self._names.audit_entry(entry.id), encode(entry)) for entry in part]
            if None in self._jetstream.store_each(writes):
                raise self._jetstream.unavailable(
                    "the server has not confirmed entries of the audit trail", remedy="run the command again"
                )


class AuditRecorder:
    """Adds the audit entries of one call to the transactions of the call.

    If a transaction is repeated, because its reply was lost, its entries are written again with the same content.
    """

    def __init__(self, draft: AuditDraft) -> None:
        self._draft = draft

    def add_commands(
        self,
        transaction: Transaction,
        commands: Sequence[Command],
        answers: Sequence[Changed],
        places: dict[str, Place],
    ) -> None:
        """Add an audit entry about all commands of the call so far.

        The new entry replaces that of earlier transactions of the call. `commands` and `answers` are those of this
        transaction and of earlier ones. If no job was changed, add no entry.
        """
        _put(transaction, self._draft.for_commands(commands, answers, places))

    def for_arrangement(self, index: int, arrangement: Arrangement) -> RecordArrangement:
        """Return a function that adds the audit entry of an arrangement to its transaction."""

        def record(transaction: Transaction, place: Place | None) -> None:
            _put(transaction, self._draft.for_arrangement(index, arrangement, place))

        return record

    def add_firing(self, transaction: Transaction, firing: Firing, fired: Fired) -> None:
        """Add the audit entry of a triggered schedule to its transaction, if the trigger has made a job."""
        _put(transaction, self._draft.for_firing(firing, fired))


def record_nothing(_transaction: Transaction, _place: Place | None) -> None:
    """Add no audit entry: the call has no actor, or the stream, of an earlier version, has no subject for it."""


def _put(transaction: Transaction, entry: AuditEntry | None) -> None:
    if entry is not None:
        names = transaction.names
        is_guarded = any(subject.startswith(names.guarded) for subject in transaction.written)
        subject = names.guarded_audit_entry(entry.id) if is_guarded else names.audit_entry(entry.id)
        transaction.batch.put(subject, encode(entry))


def _decode(data: bytes) -> AuditEntry | None:
    """Decode an audit entry. Return None for an empty message, which marks a deletion.

    Return None and log a warning for an entry that cannot be read.
    """
    try:
        return decode(data, AuditEntry) if data else None
    except msgspec.MsgspecError as error:
        logger.warning("an entry of the audit trail cannot be read, and is left out: %s", error)
        return None
