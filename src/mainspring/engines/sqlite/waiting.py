"""What waits and could start, by the first jobs of each lane: a few look-ups, however many jobs there are.

Lanes of jobs without limits and sequences tell it by themselves. Where there are limits, the heads of groups stand
in the lane until somebody with room has tried them; so the limits are asked here, without using anything up. That
takes a while for each head, and nobody can write meanwhile, so there is a most for all lanes together.

Suspects do not wait for a worker while one of them is at work: of these a worker takes one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mainspring.engines.sqlite.store import Store
from mainspring.jobs.waiting import MOST_COUNTED, First, Waiting, gather

MOST_HEADS = 2_000  # that are looked at
FEWEST_HEADS = 2  # of each lane in which there are some

# index and condition; ?1 now, ?2 the most to count, ?3 whether suspects are left out
_DUE = """SELECT seq FROM jobs INDEXED BY {index}
    WHERE lane = l.id AND status = 0 AND owner IS NULL AND wait = 0 AND {condition} AND ready <= ?1"""
_ALIVE = "AND (expires IS NULL OR expires > ?1)"
_FROM = "FROM lanes AS l CROSS JOIN jobs AS j"
_SERVED = "l.queue NOT IN (SELECT name FROM paused_queues)"
_COLUMNS = "l.type, l.queue, l.priority, j.id, j.token, j.ready"
_CLAIMABLE = _DUE.format(index="claimable", condition="crashes < 2")
_SUSPECT = _DUE.format(index="suspects", condition="crashes >= 2")


def _both(statement: str, columns: str, order: str = "") -> str:
    """Ask one index after the other."""
    parts = f"{statement.format(due=_CLAIMABLE)} UNION ALL {statement.format(due=_SUSPECT)} AND NOT ?3"
    return f"SELECT json_group_array(json_array({columns})) FROM ({parts} {order})"


# ?1 now: [whether a suspect waits and another one is at work, in how many lanes there are heads]
CIRCUMSTANCES = f"""
SELECT json_array(
    EXISTS (SELECT 1 FROM jobs INDEXED BY suspects
            WHERE lane >= 0 AND status = 0 AND owner IS NULL AND crashes >= 2 AND wait = 0)
    AND EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_by_owner
                WHERE owner IS NOT NULL AND status = 1 AND crashes >= 2),
    (SELECT count(*) FROM lanes AS l WHERE l.exact = 1 AND (EXISTS ({_CLAIMABLE}) OR EXISTS ({_SUSPECT}))))
"""

PLAIN = _both(
    f"""SELECT {_COLUMNS}, (SELECT count(*) FROM ({{due}} LIMIT ?2)) AS number
    {_FROM} ON j.seq = ({{due}} {_ALIVE} ORDER BY ready, seq LIMIT 1) WHERE l.exact = 0 AND {_SERVED}""",
    "type, queue, priority, id, token, ready, number",
)
BOUND = _both(
    f"""SELECT {_COLUMNS}, j.grp, l.id AS lane, j.seq
    {_FROM} ON j.seq IN ({{due}} {_ALIVE} ORDER BY ready, seq LIMIT ?2) WHERE l.exact = 1 AND {_SERVED}""",
    "type, queue, priority, id, token, ready, grp",
    "ORDER BY lane, ready, seq",
)


class Head(msgspec.Struct, array_like=True, gc=False):
    """A job that is the next of its sequence, or of its group."""

    type: str
    queue: str
    priority: int
    id: str
    token: int
    ready: int
    grp: int | None


class _PlainFirst(First, array_like=True, frozen=True, gc=False):
    """The first of a lane, as a row."""


_circumstances = msgspec.json.Decoder(tuple[int, int]).decode
_firsts = msgspec.json.Decoder(list[_PlainFirst]).decode
_heads = msgspec.json.Decoder(list[Head]).decode


def find_waiting(store: Store, now: int) -> tuple[Waiting, ...]:
    """Return what could start, inside of a unit."""
    write = store.database.write
    is_suspect_busy, lanes = _circumstances(write(CIRCUMSTANCES, (now,)))
    firsts: list[First] = list(_firsts(write(PLAIN, (now, MOST_COUNTED, is_suspect_busy))))
    if lanes:
        most = min(MOST_COUNTED, max(FEWEST_HEADS, MOST_HEADS // lanes))
        heads = _heads(write(BOUND, (now, most, is_suspect_busy)))
        firsts += _first_of_lanes(_admitted(store, heads))
    return gather(firsts)


def _admitted(store: Store, heads: list[Head]) -> list[Head]:
    """Return those that their limits would admit."""
    groups = store.group_names.learn(heads)
    if not groups:
        return heads
    limits = store.group_names.limits
    admission = store.buckets.trial({bucket for number in groups for bucket in limits[number]})
    return [head for head in heads if head.grp is None or admission.refusal(limits[head.grp]) is None]


def _first_of_lanes(heads: Iterable[Head]) -> list[First]:
    lanes: dict[tuple[str, str, int], list[Head]] = {}
    for head in heads:
        lanes.setdefault((head.type, head.queue, head.priority), []).append(head)
    return [
        First(*lane, found[0].id, found[0].token, min(head.ready for head in found), len(found))
        for lane, found in lanes.items()
    ]
