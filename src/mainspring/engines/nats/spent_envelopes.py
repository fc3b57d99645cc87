"""Remembers the envelopes of signed jobs that have ended, until their signatures end: `jobs/spent_envelopes.py`.

A worker stores a guarded message for each signed job that it completes or that its handler cancels. A migration
stores those of the other store. Only workers and operators may publish to these subjects, and no message
schedule can. So a submitter who writes the record of such a job again does not make it run again.

The message is sent after the outcome is stored, and without waiting for the server: a worker that dies in between
leaves no message. The record of the job is COMPLETED all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.write_batch import Write
from mainspring.jobs.records import Outcome, OutcomeKind
from mainspring.jobs.spent_envelopes import Envelope, envelope_of
from mainspring.jobs.timestamps import MICROSECONDS

ENDED = (OutcomeKind.COMPLETED, OutcomeKind.CANCELED)
TRIES = 5
_MAX_DIGITS = 19


class SpentEnvelopes:
    """Stores and reads the envelopes (signed id and times of the signature) of jobs that have ended."""

    def __init__(self, jetstream: JetStream, names: SubjectNames) -> None:
        self._jetstream = jetstream
        self._names = names

    def remember(self, settled: Sequence[tuple[Outcome, bool]], now: int) -> None:
        """Send the envelopes of signed jobs whose outcome, COMPLETED or CANCELED, was accepted, to the server.

        Do not wait for a reply. Jobs that are not signed, and those whose signatures have ended, are left out.
        """
        messages: list[tuple[str, bytes, str, Mapping[str, str]]] = []
        for outcome, is_accepted in settled:
            lease = outcome.lease
            if not is_accepted or lease.headers is None or outcome.kind not in ENDED:
                continue
            envelope = envelope_of(lease.id, lease.headers, lease.due)
            if envelope is not None and envelope.until >= now:
                write = self._write(envelope, now)
                messages.append((write.subject, write.data, "", write.headers or {}))
        self._jetstream.send(messages)

    def store(self, envelopes: Sequence[Envelope], now: int) -> None:
        """Store envelopes of another store, and wait for the server. Newer ones of the same ids stay.

        Raise `EngineUnavailable` if the server does not confirm them.
        """
        left = self.missing(envelopes)
        for _ in range(TRIES):
            revisions = self._jetstream.store_each([self._write(envelope, now) for envelope in left])
            left = [each for each, revision in zip(left, revisions, strict=True) if revision is None]
            if not left:
                return
        raise self._jetstream.unavailable("it has not confirmed that it remembers signed jobs that have ended")

    def missing(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Return the envelopes that this store does not remember, nor newer ones of the same ids."""
        known = self.find([envelope.id for envelope in envelopes])
        return [envelope for envelope in envelopes if known.get(envelope.id, 0) < envelope.signed]

    def _write(self, envelope: Envelope, now: int) -> Write:
        seconds = max(0, envelope.until - now) // MICROSECONDS + 60
        subject = self._names.spent_envelope(envelope.id)
        return Write(subject, b"%d" % envelope.signed, headers={"Nats-TTL": f"{seconds}s"})

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Return which of these signed ids are remembered, and when they were signed.

        Without a role, workers of an earlier version may run, which remember them in the main stream.
        """
        if not ids:
            return {}
        subjects = {self._names.spent_envelope(job_id): job_id for job_id in ids}
        if self._jetstream.settings.role is None:
            subjects |= {self._names.earlier_spent_envelope(job_id): job_id for job_id in ids}
        found: dict[str, int] = {}
        for subject, entry in self._jetstream.read(subjects).items():
            if entry.data:
                job_id = subjects[subject]
                found[job_id] = max(found.get(job_id, 0), _to_instant(entry.data))
        return found


def _to_instant(data: bytes) -> int:
    is_number = data.isdigit() and len(data) <= _MAX_DIGITS
    return int(data) if is_number else 1 << 62  # an unreadable one counts as spent
