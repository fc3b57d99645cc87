"""Stores the tokens of HTTP servers on NATS, each with the time of its last use, as guarded records.

Only an operator may write tokens: see `permissions.py`. Every HTTP server writes uses. In a cluster, the leader
of the stream answers a reader last, so that it never sees an outdated list. A notification tells other processes
that the tokens have changed.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats.audit import RecordArrangement, record_nothing
from mainspring.engines.nats.job_records import decode
from mainspring.engines.nats.subject_names import from_token
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.jobs.commands import NoteTokenUses, PutToken, RevokeToken, TokenArrangement
from mainspring.security.tokens import TokenRecord, merge_uses, revoke, without_old

NOTIFICATION = "tokens"


class TokenUse(Struct, frozen=True, array_like=True):
    """The stored record of the instant at which a token was last used."""

    at: int


class NatsTokens:
    """Stores, revokes and lists the tokens of HTTP servers."""

    def __init__(self, transactions: TransactionManager) -> None:
        self._transactions = transactions
        self.changes = 0
        """A number that grows when this process changes tokens, or when tokens may have changed elsewhere."""

    def list(self) -> list[TokenRecord]:
        """Return the stored tokens, sorted by name, each with the time of its last use."""
        return merge_uses(self._read(), self._read_uses())

    def _read(self) -> tuple[TokenRecord, ...]:
        """Return the stored tokens, in the order of their creation."""
        found = self._transactions.jetstream.scan_all(f"{self._transactions.names.tokens}*")
        last = {subject: message.data for subject, message in found}
        tokens = [decode(data, TokenRecord) for data in last.values() if data]
        return tuple(sorted(tokens, key=lambda token: (token.created, token.id)))

    def _read_uses(self) -> dict[str, int]:
        names = self._transactions.names
        found = self._transactions.jetstream.scan_all(f"{names.token_uses}*")
        last = {subject: message.data for subject, message in found}
        return {
            from_token(subject.removeprefix(names.token_uses)): decode(data, TokenUse).at
            for subject, data in last.items()
            if data
        }

    def change(self, arrangement: TokenArrangement, record: RecordArrangement = record_nothing) -> bool:
        """Store or revoke a token, or store uses; return whether that changed anything.

        If it does, `record` is called in the same transaction. Other processes are notified of new and revoked
        tokens.
        """
        # whether each attempt changed the record: after a lost reply, the next attempt changes nothing
        attempts: list[bool] = []

        def work(transaction: Transaction) -> None:
            attempts.append(self._write(transaction, arrangement))
            if attempts[-1]:
                record(transaction, None)

        self._transactions.run(work)
        is_changed = any(attempts)
        if is_changed and not isinstance(arrangement, NoteTokenUses):
            self.changes += 1
            self._transactions.jetstream.send([(f"{self._transactions.names.notifications}{NOTIFICATION}", b"")])
        return is_changed

    def _write(self, transaction: Transaction, arrangement: TokenArrangement) -> bool:
        match arrangement:
            case PutToken():
                return self._put(transaction, arrangement.record)
            case RevokeToken():
                return _revoke(transaction, arrangement)
            case NoteTokenUses():
                return _write_uses(transaction, arrangement)

    def _put(self, transaction: Transaction, token: TokenRecord) -> bool:
        names = transaction.names
        if transaction.get(names.token(token.id)):
            return False
        tokens = self._read()
        kept = {each.id for each in without_old(tokens, transaction.now)}
        for old in tokens:
            if old.id not in kept:
                transaction.delete(names.token(old.id))
                if transaction.get(names.token_use(old.id)):
                    transaction.delete(names.token_use(old.id))
        transaction.put_struct(names.token(token.id), replace(token, last_used=None))
        return True


def _revoke(transaction: Transaction, arrangement: RevokeToken) -> bool:
    subject = transaction.names.token(arrangement.id)
    before = transaction.get_struct(subject, TokenRecord)
    after = None if before is None else revoke(before, arrangement.at)
    if after is None or after == before:
        return False
    transaction.put_struct(subject, after)
    return True


def _write_uses(transaction: Transaction, arrangement: NoteTokenUses) -> bool:
    names = transaction.names
    transaction.prefetch(names.token(token_id) for token_id in arrangement.uses)
    transaction.prefetch(names.token_use(token_id) for token_id in arrangement.uses)
    is_changed = False
    for token_id, used in arrangement.uses.items():
        before = transaction.get_struct(names.token_use(token_id), TokenUse)
        if transaction.get(names.token(token_id)) and (before is None or before.at < used):
            transaction.put_struct(names.token_use(token_id), TokenUse(used))
            is_changed = True
    return is_changed
