"""Copies guarded records of earlier versions, which are in the main stream, to the guarded stream.

Earlier versions stored tokens, their uses, the envelopes of ended signed jobs and the stages of migrations in
the main stream. A process that may create streams copies them once, and then stores a mark. The originals stay
for processes of an earlier version. What these write later is not copied, because in the main stream a submitter
could write it, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import decode, encode
from mainspring.engines.nats.migration import MigrationCheckpoint
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.tokens import TokenUse
from mainspring.engines.nats.write_batch import Write
from mainspring.jobs.migration_records import MigrationStage
from mainspring.security.tokens import TokenRecord

AT_ONCE = 500
TRIES = 5


class EarlierTokens(Struct, frozen=True, array_like=True):
    """The record in which earlier versions store all tokens."""

    tokens: tuple[TokenRecord, ...] = ()


class EarlierUses(Struct, frozen=True, array_like=True):
    """The record in which earlier versions store when each token was last used."""

    uses: dict[str, int] = {}


def take_over(jetstream: JetStream, names: SubjectNames) -> None:
    """Copy the guarded records of earlier versions, unless a process has done so before.

    A record that exists in the guarded stream already stays. Raise `EngineUnavailable` if the server does not
    confirm a record; then the next process that may create streams tries again.
    """
    if jetstream.read_one(names.taken_over).revision:
        return
    writes: list[Write] = []
    for write in _find_earlier(jetstream, names):
        writes.append(write)
        if len(writes) == AT_ONCE:
            _store(jetstream, writes)
            writes = []
    _store(jetstream, [*writes, Write(names.taken_over, b"1", 0)])


def _find_earlier(jetstream: JetStream, names: SubjectNames) -> Iterator[Write]:
    tokens = jetstream.read_one(names.earlier_tokens).data
    for token in decode(tokens, EarlierTokens).tokens if tokens else ():
        yield Write(names.token(token.id), encode(token), 0)
    uses = jetstream.read_one(names.earlier_token_uses).data
    for token_id, used in decode(uses, EarlierUses).uses.items() if uses else ():
        yield Write(names.token_use(token_id), encode(TokenUse(used)), 0)
    for _, message in jetstream.scan_all(f"{names.moves}*"):
        checkpoint = decode(message.data, MigrationCheckpoint) if message.data else None
        if checkpoint is not None and checkpoint.stage is not MigrationStage.COMPLETE:
            yield Write(names.open_move(checkpoint.id), message.data, 0)
    for subject, message in jetstream.scan_all(f"{names.earlier_spent}*"):
        if message.data:
            headers = {"Nats-TTL": message.ttl} if message.ttl else None
            yield Write(subject.replace(names.earlier_spent, names.spent), message.data, 0, headers)


def _store(jetstream: JetStream, writes: list[Write]) -> None:
    left = writes
    for _ in range(TRIES):
        revisions = jetstream.store_each(left)
        missed = [write.subject for write, revision in zip(left, revisions, strict=True) if revision is None]
        stored = jetstream.read(missed)
        left = [write for write in left if write.subject in missed and not stored[write.subject].revision]
        if not left:
            return
    raise jetstream.unavailable("it has not confirmed that it stores the records of an earlier version")
