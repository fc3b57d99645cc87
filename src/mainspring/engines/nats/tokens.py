"""Stores the tokens of HTTP servers on NATS: one record with all tokens, and one with the times of their last use.

Only an operator may write the first record: see `permissions.py`. Every HTTP server writes the second one. A
reader always asks the server, in a cluster the leader of the stream, so that it never sees an outdated list. A
notification tells other processes that the tokens have changed.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats.audit import RecordArrangement, record_nothing
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.jobs.commands import NoteTokenUses, PutToken, RevokeToken, TokenArrangement
from mainspring.security.tokens import TokenRecord, merge_uses, revoke, without_old

NOTIFICATION = "tokens"


class _TokensRecord(Struct, frozen=True, array_like=True):
    tokens: tuple[TokenRecord, ...] = ()


class _UsesRecord(Struct, frozen=True, array_like=True):
    uses: dict[str, int] = {}


class NatsTokens:
    """Stores, revokes and lists the tokens of HTTP servers."""

    def __init__(self, transactions: TransactionManager) -> None:
        self._transactions = transactions
        self.changes = 0
        """A number that grows when this process changes tokens, or when tokens may have changed elsewhere."""

    def list(self) -> list[TokenRecord]:
        """Return the stored tokens, sorted by name, each with the time of its last use."""
        transaction = self._transactions.begin()  # reads each record alone: see `Transaction.confirm`
        return merge_uses(_tokens_in(transaction), _uses_in(transaction))

    def change(self, arrangement: TokenArrangement, record: RecordArrangement = record_nothing) -> bool:
        """Store or revoke a token, or store uses; return whether that changed anything.

        If it does, `record` is called in the same transaction. Other processes are notified of new and revoked
        tokens.
        """
        # whether each attempt changed the record: after a lost reply, the next attempt changes nothing
        attempts: list[bool] = []

        def work(transaction: Transaction) -> None:
            attempts.append(_write(transaction, arrangement))
            if attempts[-1]:
                record(transaction, None)

        self._transactions.run(work)
        is_changed = any(attempts)
        if is_changed and not isinstance(arrangement, NoteTokenUses):
            self.changes += 1
            self._transactions.jetstream.send([(f"{self._transactions.names.notifications}{NOTIFICATION}", b"")])
        return is_changed


def _tokens_in(transaction: Transaction) -> tuple[TokenRecord, ...]:
    return (transaction.get_struct(transaction.names.tokens, _TokensRecord) or _TokensRecord()).tokens


def _uses_in(transaction: Transaction) -> dict[str, int]:
    return (transaction.get_struct(transaction.names.token_uses, _UsesRecord) or _UsesRecord()).uses


def _write(transaction: Transaction, arrangement: TokenArrangement) -> bool:
    if isinstance(arrangement, NoteTokenUses):
        return _write_uses(transaction, arrangement)
    before = _tokens_in(transaction)
    after = _changed(before, arrangement, transaction.now)
    if after == before:
        return False
    transaction.put_struct(transaction.names.tokens, _TokensRecord(after))
    return True


def _changed(
    tokens: tuple[TokenRecord, ...], arrangement: PutToken | RevokeToken, now: int
) -> tuple[TokenRecord, ...]:
    if isinstance(arrangement, RevokeToken):
        return tuple(revoke(token, arrangement.at) if token.id == arrangement.id else token for token in tokens)
    if any(token.id == arrangement.record.id for token in tokens):
        return tokens
    return (*without_old(tokens, now), replace(arrangement.record, last_used=None))


def _write_uses(transaction: Transaction, arrangement: NoteTokenUses) -> bool:
    known = {token.id for token in _tokens_in(transaction)}
    before = _uses_in(transaction)
    after = {token: used for token, used in before.items() if token in known}
    for token, used in arrangement.uses.items():
        if token in known:
            after[token] = max(used, after.get(token, 0))
    if after == before:
        return False
    transaction.put_struct(transaction.names.token_uses, _UsesRecord(after))
    return True
