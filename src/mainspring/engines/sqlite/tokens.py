"""Stores the tokens of the HTTP server: their records with hashes of the secrets, and when they were last used."""

from __future__ import annotations

import apsw
import msgspec

from mainspring.engines.sqlite.codec import to_json
from mainspring.engines.sqlite.store import Store
from mainspring.jobs.commands import NoteTokenUses, PutToken, RevokeToken, TokenArrangement
from mainspring.security.tokens import KEPT_AFTER_END, TokenRecord, merge_uses, revoke

ALL = "SELECT json_group_array(json_array(record, last_used)) FROM tokens"
ONE = "SELECT record FROM tokens WHERE id = ?1"
INSERT = "INSERT INTO tokens VALUES (?1, ?2, ?3, NULL) ON CONFLICT (id) DO NOTHING"
UPDATE = "UPDATE tokens SET record = ?2, ended = ?3 WHERE id = ?1"
DELETE_OLD = "DELETE FROM tokens WHERE ended < ?1"
USE = """
UPDATE tokens SET last_used = used.value FROM json_each(?1) AS used
WHERE tokens.id = used.key AND used.value > ifnull(last_used, 0)
"""

_rows = msgspec.json.Decoder(list[tuple[str, int | None]]).decode
_record = msgspec.json.Decoder(TokenRecord).decode


class TokenWriter:
    """Stores and revokes tokens of the HTTP server, and their last uses.

    For use inside a unit (one transaction).
    """

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._now = store.now
        self.changes = 0
        """A number that grows after each commit of a unit in which this process has stored or revoked tokens.

        It may grow after a rollback, too. Uses of tokens do not count.
        """
        self.is_changed = False
        """Whether the current unit has stored or revoked tokens."""

    def change(self, arrangement: TokenArrangement) -> bool:
        """Store or revoke a token, or store when tokens were last used; return whether that changed anything."""
        match arrangement:
            case PutToken():
                return self._put(arrangement)
            case RevokeToken():
                return self._revoke(arrangement)
            case NoteTokenUses():
                return self._note_uses(arrangement)

    def _put(self, command: PutToken) -> bool:
        """Store a new token; return False if there is one with the same id. Delete tokens that ended long ago."""
        record = command.record
        self._database.write(DELETE_OLD, (self._now() - KEPT_AFTER_END,))
        self._database.write(INSERT, (record.id, to_json(record), _end_of(record)))
        return self._changed()

    def _revoke(self, command: RevokeToken) -> bool:
        """Revoke a token; return False if there is no such token, or if it was revoked before."""
        text = self._database.write(ONE, (command.id,))
        if text is None:
            return False
        before = _record(text)
        after = revoke(before, command.at)
        if after == before:
            return False
        self._database.write(UPDATE, (after.id, to_json(after), _end_of(after)))
        return self._changed()

    def _note_uses(self, command: NoteTokenUses) -> bool:
        """Store when tokens were last used; return whether one of the times is later than the stored one."""
        self._database.write(USE, (to_json(command.uses),))
        return self._database.changes() > 0

    def end_unit(self) -> None:
        """Increment `changes` if the unit that has ended has stored or revoked tokens.

        A unit that was rolled back counts, too, because its commit may have succeeded before an interrupt.
        """
        self.changes += self.is_changed
        self.is_changed = False

    def _changed(self) -> bool:
        is_changed = self._database.changes() > 0
        self.is_changed |= is_changed
        return is_changed


def _end_of(record: TokenRecord) -> int | None:
    return min((end for end in (record.revoked, record.expires) if end is not None), default=None)


def read_tokens(connection: apsw.Connection) -> list[TokenRecord]:
    """Return the stored tokens, by name."""
    rows = [(_record(text), used) for text, used in _rows(connection.execute(ALL).get)]
    return merge_uses(
        [record for record, _ in rows], {record.id: used for record, used in rows if used is not None}
    )
