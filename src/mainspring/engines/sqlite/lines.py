"""The lines in which jobs wait for others: sequences, and groups of jobs of one lane under the same limits.

Invariants, after every unit
- Of each sequence at most one PENDING job does not wait (`wait` is not 1): the first by (turn, seq), and none
  while one of it runs.
- Of the jobs of a group that do not wait for their sequence, at most one can be claimed (`wait` is 0): the first
  by (due, seq), and none while the group is parked, that is, refused by one of its buckets. Suspects, of which a
  worker takes one at a time, stand in a line of their own: they hold up nobody else.
- So the claims hold one job for each line, however long the lines are, and what is blocked costs nothing.
- A job that was submitted into a group and has not moved since (`moved` is NULL) stays in the index `members` till
  it is deleted: the group knows up to where they have started, and none of them waits up to there. So a start and
  a good end change no index of groups, in which the jobs of a hundred groups stand in a hundred places. Others,
  that have come back, were moved, have a sequence or are due before what has started, stand in an index of their
  own (`moved_members`), and only while they wait.

Groups with a key take turns: whoever becomes the head of its group is ready from that moment on, not from its due
time, and so queues up behind the heads of others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from mainspring.engines.sqlite import line_statements as sql
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.groups import number_of, takes_turns
from mainspring.engines.sqlite.rows import LeaseRow, to_json

_lines = msgspec.json.Decoder(list[tuple[str | None, str | None]]).decode
_heads = msgspec.json.Decoder(list[tuple[int | None, int | None]]).decode


class Places:
    """Where some jobs stand: the sequences and groups that a change of them may concern."""

    def __init__(self, lines: Iterable[tuple[str | None, str | None]] = ()) -> None:
        self.sequences: set[str] = set()
        self.groups: set[str] = set()
        self.add(lines)

    def add(self, lines: Iterable[tuple[str | None, str | None]]) -> None:
        """Add the sequence and group of each of some jobs."""
        for sequence, group in lines:
            if sequence is not None:
                self.sequences.add(sequence)
            if group is not None:
                self.groups.add(group)

    def __bool__(self) -> bool:
        return bool(self.sequences or self.groups)


class Lines:
    """Keeps the lines in order, inside of units. `wake` is called when somebody may go who could not before."""

    def __init__(self, database: Database, now: Callable[[], int], wake: Callable[[], None]) -> None:
        self._database = database
        self._now = now
        self._wake = wake

    # -- finding out

    def of_ids(self, ids: Collection[str]) -> Places:
        """Return where jobs stand."""
        return Places(_lines(self._database.write(sql.LINES_OF_IDS, (to_json(list(ids)),))))

    def of_rows(self, seqs: Collection[int]) -> Places:
        """Return where jobs stand."""
        return Places(_lines(self._database.write(sql.LINES_OF, (to_json(list(seqs)),))))

    def of_owners(self, workers: Collection[int]) -> Places:
        """Return where the jobs of workers stand."""
        return Places(_lines(self._database.write(sql.LINES_OF_OWNERS, (to_json(list(workers)),))))

    # -- putting in order

    def put_in_order(self, places: Places) -> None:
        """Let the right ones go: something was added to these lines, moved in them or taken out of them."""
        groups = set(places.groups)
        if places.sequences:
            moved = self._order_sequences(places.sequences)
            if moved:  # whoever was due in them may have gone behind, and nobody else needs to be parked
                self._database.write(
                    sql.UNPARK_IDLE, (to_json([number_of(group) for group in moved]), self._now())
                )
            groups |= moved
        if groups:
            self.order_groups(groups)
        if places:
            self._wake()

    def _order_sequences(self, sequences: Collection[str]) -> set[str]:
        """Return the groups in which something moved."""
        before, after = self._moves(sql.SEQUENCE_HEADS, sequences)
        if before:
            self._database.write(sql.LEAVE_SEQUENCE_HEAD, (to_json(before),))
        if after:
            self._database.write(sql.BECOME_SEQUENCE_HEAD, (to_json(after),))
        return self.of_rows(before + after).groups if before or after else set()

    def advance(self, last: Mapping[int, LeaseRow]) -> None:
        """Note up to where jobs of groups have started: nobody needs to look there any more."""
        if last:
            batch = [(number, row.due, row.seq) for number, row in last.items()]
            self._database.write(sql.ADVANCE, (to_json(batch),))

    def follow(self, numbers: Collection[int], ready: int) -> None:
        """Let the next of each group go, in a take: its head has started, and it is not parked."""
        if numbers:
            self._database.write(sql.NEXT_GROUP_HEADS, (to_json(numbers), ready))

    def order_groups(self, groups: Collection[str], now: int | None = None) -> None:
        """Let the first of each group go, unless the group is parked.

        A take says what is now for it: what it makes ready would else look as if it were due later.
        """
        fair = [number_of(group) for group in groups if takes_turns(group)]
        plain = [number_of(group) for group in groups if not takes_turns(group)]
        for numbers, ready in ((fair, self._now() if now is None else now), (plain, 0)):
            before, after = self._moves(sql.GROUP_HEADS, numbers) if numbers else ([], [])
            if before:
                self._database.write(sql.LEAVE_GROUP_HEAD, (to_json(before),))
            if after:
                self._database.write(sql.BECOME_GROUP_HEAD, (to_json(after), ready))

    def _moves(self, statement: str, keys: Collection[object]) -> tuple[list[int], list[int]]:
        heads = _heads(self._database.write(statement, (to_json(list(keys)),)))
        before = [old for old, new in heads if old is not None and old != new]
        after = [new for old, new in heads if new is not None and old != new]
        return before, after
