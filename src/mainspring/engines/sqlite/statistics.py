"""Counts due, blocked and scheduled jobs by lane, by indexes and with a bound, for `app.statistics()`.

An engine and a projection have the same tables, so both are counted here. They differ in the jobs under limits:
see `LimitedJobs`. The terms are those of `jobs.statistics`.

- In a lane without sequences and limits, all jobs that no worker holds are in the indexes for claims, in the order
  of their due times.
- In a lane with sequences and limits, the indexes for claims have the heads: the first waiting job of each
  sequence and group. Behind them, due jobs of sequences are in the index `waiting_in_sequences`, and those of
  groups are counted group by group.
- All other PENDING jobs of a lane are scheduled. Whether a lane has many PENDING jobs is the cheapest question of
  all: see `PENDING_OF_LANES`.
- A limit refuses either all jobs of a group or none, so it is evaluated once for each group.

Each count stops at `MAX_COUNTED` jobs, so that the time does not grow with the number of jobs in the store. Limits
are evaluated for at most `MAX_GROUPS` groups; the heads of other groups count as due.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import apsw
import msgspec
from msgspec.structs import replace

from mainspring.engines.sqlite.codec import limits_of, pairs_of_integers, strings, to_json
from mainspring.engines.sqlite.waiting_statements import LIMITS, PAUSED_QUEUES, STATES
from mainspring.jobs.limits import Admission, BucketState, Limit
from mainspring.jobs.store_statistics import MAX_COUNTED, FindFull, JobGroup

MAX_GROUPS = 500
MAX_HEADS = 2_000
FEWEST_HEADS = 50  # how many heads of each lane are read at least, however many lanes there are

_FREE = "lane = l.id AND status = 0 AND owner IS NULL AND wait = 0"
_CLAIMABLE = f"FROM jobs INDEXED BY claimable WHERE {_FREE} AND crashes < 2"
_SUSPECTS = f"FROM jobs INDEXED BY suspects WHERE {_FREE} AND crashes >= 2"
_BEHIND = "FROM jobs INDEXED BY waiting_in_sequences WHERE lane = l.id AND status = 0 AND wait = 1"
_RUNNING = "FROM jobs INDEXED BY jobs_by_lane WHERE lane = l.id AND status = 1"
_LETTERS = "FROM jobs INDEXED BY unreplayed WHERE lane = l.id AND status = 3 AND replayed_as IS NULL"


def _count(jobs: str, most: str = "?2") -> str:
    """Return an SQL expression that counts jobs up to `most`.

    SQLite skips index entries faster than it counts them one by one up to a limit.
    """
    return f"iif(EXISTS (SELECT 1 {jobs} LIMIT 1 OFFSET {most} - 1), {most}, (SELECT count(*) {jobs}))"


# ?1 now, ?2 one more than the largest count
LANE_COUNTS = f"""
SELECT json_group_array(json_array(l.id, l.queue, l.type, l.exact,
    {_count(f"{_CLAIMABLE} AND ready <= ?1")}, {_count(f"{_SUSPECTS} AND ready <= ?1")},
    (SELECT min(ready) {_CLAIMABLE} AND ready <= ?1), (SELECT min(ready) {_SUSPECTS} AND ready <= ?1),
    iif(l.exact, {_count(f"{_BEHIND} AND due <= ?1")}, 0), iif(l.exact, (SELECT min(due) {_BEHIND}), NULL),
    {_count(_RUNNING)}, {_count(_LETTERS)})) FROM lanes AS l
"""
# ?1 now: [lane, number of held jobs, number of those that are due, the earliest due time of these]
HELD_JOBS = """
SELECT json_group_array(json_array(lane, held, due, oldest)) FROM (
    SELECT lane, count(*) AS held, total(due <= ?1) AS due, min(iif(due <= ?1, due, NULL)) AS oldest
    FROM jobs INDEXED BY jobs_by_owner WHERE owner IS NOT NULL AND status = 0 GROUP BY lane)
"""
# batch of lanes; ?2 the largest count: [lane, number of PENDING jobs]. PENDING is the first status, so the index
# begins with the PENDING jobs of a lane. SQLite skips entries without an upper bound in 8 ns each, and in 40 ns if
# it must compare each entry with a bound, or if the index lacks a column that the statement names.
PENDING_OF_LANES = """
SELECT json_group_array(json_array(l.value, iif(
    (SELECT lane = l.value AND status = 0 FROM jobs INDEXED BY jobs_by_lane
        WHERE lane >= l.value ORDER BY lane, status LIMIT 1 OFFSET ?2 - 1), ?2,
    (SELECT count(*) FROM jobs INDEXED BY jobs_by_lane WHERE lane = l.value AND status = 0)
))) FROM json_each(?1) AS l
"""
# batch of lanes; ?2 the largest count, ?3 now: [lane, number of heads and of jobs behind them that are due later]
LATER_IN_LANES = f"""
SELECT json_group_array(json_array(l.id, {
    " + ".join(
        _count(f"{part} AND {due} > ?3")
        for part, due in ((_CLAIMABLE, "ready"), (_SUSPECTS, "ready"), (_BEHIND, "due"))
    )
})) FROM json_each(?1) AS k CROSS JOIN lanes AS l ON l.id = k.value
"""


class _LaneRow(msgspec.Struct, array_like=True, gc=False):
    """The counts of the jobs of a lane (a queue, job type and priority), as a database row."""

    lane: int
    queue: str
    type: str
    exact: int
    claimable: int
    suspects: int
    oldest_claimable: int | None
    oldest_suspect: int | None
    behind: int
    oldest_behind: int | None
    running: int
    dead_letters: int


class LaneCounts(msgspec.Struct, gc=False):
    """The counts of the jobs of one lane (a queue, job type and priority), while they are put together."""

    lane: int
    queue: str
    type: str
    is_bound: bool
    """Whether these jobs are in sequences or under limits."""
    due: int = 0
    blocked: int = 0
    scheduled: int = 0
    running: int = 0
    dead_letters: int = 0
    oldest_due: int | None = None
    oldest_blocked: int | None = None
    is_exact: bool = True
    later: int = 0
    """At least so many jobs that are in no index for claims are due later: under limits, or leased early."""

    def add_due(self, count: int, oldest: int | None) -> None:
        """Add jobs that could start now, the oldest due since `oldest`, to the counts."""
        self.due += count
        self.oldest_due = _earlier(self.oldest_due, oldest)

    def add_blocked(self, count: int, oldest: int | None) -> None:
        """Add jobs to the counts whose due time has come, but that wait for a paused queue, a limit or their
        sequence.
        """
        self.blocked += count
        self.oldest_blocked = _earlier(self.oldest_blocked, oldest)

    def pause(self) -> None:
        """Count all due jobs of this queue, type and priority as blocked, because the queue is paused."""
        self.add_blocked(self.due, self.oldest_due)
        self.due, self.oldest_due = 0, None


class LimitedGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The due jobs of one queue, type and priority under the same limits.

    Jobs that wait for their sequence are left out.
    """

    name: str
    """The name of the group: see `codec`."""
    count: int
    oldest: int | None
    later: int = 0
    """At least so many jobs of the group are due later."""

    @property
    def lane(self) -> int:
        """The row number of the lane: the queue, job type and priority of the jobs."""
        return int(_name(self.name)[0])

    @property
    def limits(self) -> tuple[str, ...]:
        """The buckets (limit and key) that must admit the jobs of the group."""
        return limits_of(self.name)


_name = msgspec.json.Decoder(tuple[int | str, ...]).decode
_rows = msgspec.json.Decoder(list[_LaneRow]).decode
_held = msgspec.json.Decoder(list[tuple[int, int, float, int | None]]).decode
_limits = msgspec.json.Decoder(list[tuple[str, int, int | None, list[str]]]).decode
_states = msgspec.json.Decoder(list[tuple[str, int, int]]).decode
limited_groups = msgspec.json.Decoder(list[LimitedGroup]).decode


class LimitedJobs(Protocol):
    """Finds the due jobs under limits. An engine and a projection store them differently."""

    def __call__(
        self, connection: apsw.Connection, lanes: Sequence[LaneCounts], now: int, most: int
    ) -> list[LimitedGroup]:
        """Return the groups of due jobs under limits, and correct the counts in `lanes`.

        A lane is a queue, type and priority; a group has the jobs of a lane under the same limits.

        In each lane: set `later`; set `is_exact` to False if not all of its jobs were read; subtract the jobs of
        the returned groups from `due` if they are counted there, so that no job counts twice.

        If a group has more than `most` due jobs, its count may be any number above `most`.
        """


class CountedJobs:
    """The counts of jobs that were read from a file, before limits and paused queues are applied to them."""

    def __init__(self, lanes: dict[int, LaneCounts], groups: list[LimitedGroup]) -> None:
        self._lanes = lanes
        self._groups = groups

    def add_up(self, *, paused: Collection[str], find_full: FindFull) -> tuple[JobGroup, ...]:
        """Apply the limits and the paused queues, and return the counts of each queue and job type. Call it once.

        A bucket is the part of a limit for one key. `find_full` returns which combinations of buckets admit no
        job. It is asked about `MAX_GROUPS` combinations at most. Jobs under other combinations count as blocked,
        and the counts of their queue and job type as not exact.
        """
        limits = list(dict.fromkeys(group.limits for group in self._groups))
        evaluated = set(limits[:MAX_GROUPS])
        full = set(find_full(evaluated)) if evaluated else set()
        for group in self._groups:
            counts = self._lanes[group.lane]
            if group.limits in evaluated and group.limits not in full:
                counts.add_due(group.count, group.oldest)
            else:
                counts.add_blocked(group.count, group.oldest)
                counts.is_exact &= group.limits in evaluated
        for counts in self._lanes.values():
            if counts.queue in paused:
                counts.pause()
        return _merge(self._lanes.values())


def count_jobs(
    connection: apsw.Connection, now: int, limited: LimitedJobs, most: int = MAX_COUNTED
) -> CountedJobs:
    """Count the jobs of each lane (queue, type and priority), each count up to `most`.

    Due jobs that workers have leased and not started are added to that, without a bound.

    `limited` finds the due jobs under limits. All statements must see the same state: call this in a transaction.
    """
    rows = _rows(connection.execute(LANE_COUNTS, (now, most + 1)).get)
    lanes = {row.lane: _to_counts(row, most) for row in rows}
    held = _held(connection.execute(HELD_JOBS, (now,)).get)
    for lane, number, due, oldest in held:
        lanes[lane].add_due(int(due), oldest)
        if not lanes[lane].is_bound:
            lanes[lane].later += number - int(due)
    bound = [counts for counts in lanes.values() if counts.is_bound]
    groups: list[LimitedGroup] = []
    if bound:
        for group in limited(connection, bound, now, most):
            groups.append(replace(group, count=min(most, group.count)))
            lanes[group.lane].is_exact &= group.count <= most
    incomplete = [counts for counts in lanes.values() if not counts.is_exact]
    _count_scheduled(connection, [counts for counts in lanes.values() if counts.is_exact], groups, most)
    if incomplete:
        _estimate_scheduled(connection, incomplete, now, most)
    return CountedJobs(lanes, groups)


def _to_counts(row: _LaneRow, most: int) -> LaneCounts:
    counts = LaneCounts(row.lane, row.queue, row.type, bool(row.exact))
    counts.add_due(min(most, row.claimable + row.suspects), _earlier(row.oldest_claimable, row.oldest_suspect))
    counts.running = min(most, row.running)
    counts.dead_letters = min(most, row.dead_letters)
    if row.behind:
        counts.add_blocked(min(most, row.behind), row.oldest_behind)
    counts.is_exact = max(row.claimable + row.suspects, row.behind, row.running, row.dead_letters) <= most
    return counts


def _count_scheduled(
    connection: apsw.Connection, lanes: Iterable[LaneCounts], groups: Iterable[LimitedGroup], most: int
) -> None:
    """Set `scheduled` of lanes whose due jobs are all counted to their other PENDING jobs, up to `most`.

    A lane is a queue, type and priority.

    `is_exact` becomes False for a lane that has more.
    """
    by_number = {counts.lane: counts for counts in lanes}
    others = {number: counts.due + counts.blocked for number, counts in by_number.items()}
    for group in groups:
        if group.lane in others:
            others[group.lane] += group.count
    limit = most + 1 + max(others.values(), default=0)
    for number, pending in pairs_of_integers(
        connection.execute(PENDING_OF_LANES, (to_json(list(others)), limit)).get
    ):
        scheduled = max(0, pending - others[number])
        by_number[number].scheduled = min(most, scheduled)
        by_number[number].is_exact = scheduled <= most


def _estimate_scheduled(connection: apsw.Connection, lanes: Iterable[LaneCounts], now: int, most: int) -> None:
    """Set `scheduled` of lanes (queue, type, priority) whose due jobs are not all counted to a lower bound.

    The bound is at most `most`.
    """
    by_number = {counts.lane: counts for counts in lanes}
    batch = to_json(list(by_number))
    for number, later in pairs_of_integers(connection.execute(LATER_IN_LANES, (batch, most, now)).get):
        by_number[number].scheduled = min(most, by_number[number].later + later)


def _merge(lanes: Iterable[LaneCounts]) -> tuple[JobGroup, ...]:
    """Add up the counts of each queue and job type over all priorities, sorted by queue and job type.

    Leave out queues and job types without jobs that wait, run or are dead letters.
    """
    found: dict[tuple[str, str], LaneCounts] = {}
    for lane in lanes:
        total = found.setdefault((lane.queue, lane.type), LaneCounts(0, lane.queue, lane.type, is_bound=False))
        total.add_due(lane.due, lane.oldest_due)
        total.add_blocked(lane.blocked, lane.oldest_blocked)
        total.scheduled += lane.scheduled
        total.running += lane.running
        total.dead_letters += lane.dead_letters
        total.is_exact &= lane.is_exact
    return tuple(
        JobGroup(
            queue,
            type_,
            total.due,
            total.blocked,
            total.scheduled,
            total.running,
            total.dead_letters,
            total.oldest_due,
            total.oldest_blocked,
            total.is_exact,
        )
        for (queue, type_), total in sorted(found.items())
        if total.due or total.blocked or total.scheduled or total.running or total.dead_letters
    )


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((instant for instant in (one, other) if instant is not None), default=None)


# -- jobs under limits in the file of an engine

HAS_GROUPS = "SELECT EXISTS (SELECT 1 FROM groups)"
# batch of lanes; ?2 now, ?3 how many of each lane: [lane, group number or null, due] of the due heads
DUE_HEADS = f"""
SELECT json_group_array(json_array(lane, grp, due)) FROM json_each(?1) AS k
CROSS JOIN lanes AS l ON l.id = k.value CROSS JOIN jobs AS j ON j.seq IN (
    SELECT seq FROM (SELECT seq {_CLAIMABLE} AND ready <= ?2 ORDER BY ready LIMIT ?3)
    UNION ALL SELECT seq FROM (SELECT seq {_SUSPECTS} AND ready <= ?2 ORDER BY ready LIMIT ?3))
"""
# ?1 how many: the numbers of parked groups
PARKED_GROUPS = "SELECT json_group_array(grp) FROM (SELECT grp FROM parked LIMIT ?1)"

# The due jobs of a group `g` that do not wait for their sequence: see `waiting_groups`. Unmoved jobs behind the
# last started one are all PENDING, so their status is not read: the index has all that is needed.
_UNMOVED = "FROM jobs INDEXED BY members WHERE grp = g.id AND grp IS NOT NULL AND moved IS NULL"
_PARTS = (
    f"{_UNMOVED} AND due = g.due AND seq > g.seq",
    f"{_UNMOVED} AND due > g.due",
    """FROM jobs INDEXED BY moved_members WHERE grp = g.id AND grp IS NOT NULL AND moved IS NOT NULL AND status = 0
        AND owner IS NULL AND wait <> 1 AND crashes < 2""",
    """FROM jobs INDEXED BY suspects_of_groups WHERE grp = g.id AND grp IS NOT NULL AND status = 0
        AND owner IS NULL AND wait <> 1 AND crashes >= 2""",
)
_DUE_PARTS = [f"{part} AND due <= ?2" for part in _PARTS]
# batch of group numbers; ?2 now, ?3 the largest count: [name, number of due jobs, the earliest due time, number of
# unmoved jobs that are due later]
LIMITED_GROUPS = f"""
SELECT json_group_array(json_array(name, {" + ".join(_count(part, "?3") for part in _DUE_PARTS)},
    (SELECT min(due) FROM ({" UNION ALL ".join(f"SELECT min(due) AS due {part}" for part in _DUE_PARTS)})),
    {_count(f"{_UNMOVED} AND due > max(g.due, ?2)", "?3")}))
FROM json_each(?1) AS k CROSS JOIN groups AS g ON g.id = k.value
"""

_heads = msgspec.json.Decoder(list[tuple[int, int | None, int]]).decode
_numbers = msgspec.json.Decoder(list[int]).decode


def limited_jobs(
    connection: apsw.Connection, lanes: Sequence[LaneCounts], now: int, most: int
) -> list[LimitedGroup]:
    """Find the groups of due jobs under limits in the file of an engine, up to `MAX_GROUPS` groups.

    A group has the jobs of one queue, type and priority under the same limits. If some of them are due, claims
    find its first job, or skip the group because a limit has refused it (it is parked). The counts of `lanes`
    change as `LimitedJobs` says.
    """
    if not connection.execute(HAS_GROUPS).get:
        return []
    with_heads = {counts.lane: counts for counts in lanes if counts.due}
    numbers = dict.fromkeys(_numbers(connection.execute(PARKED_GROUPS, (MAX_GROUPS + 1,)).get))
    heads: dict[int, list[tuple[int | None, int]]] = {lane: [] for lane in with_heads}
    if with_heads:
        number_of_heads = max(FEWEST_HEADS, MAX_HEADS // len(with_heads))
        bindings = (to_json(list(with_heads)), now, number_of_heads)
        for lane, number, due in _heads(connection.execute(DUE_HEADS, bindings).get):
            heads[lane].append((number, due))
    for lane, found in heads.items():
        _take_out_groups(with_heads[lane], found, numbers)
    if len(numbers) > MAX_GROUPS:
        for counts in lanes:
            counts.is_exact = False
    chosen = to_json(list(numbers)[:MAX_GROUPS])
    groups = limited_groups(connection.execute(LIMITED_GROUPS, (chosen, now, most + 1)).get)
    by_number = {counts.lane: counts for counts in lanes}
    for group in groups:
        by_number[group.lane].later += group.later
    return groups


def _take_out_groups(counts: LaneCounts, heads: list[tuple[int | None, int]], numbers: dict[int, None]) -> None:
    """Subtract the first jobs (heads) of groups of jobs under the same limits from the due jobs of a lane (queue,
    type and priority).

    They are counted with their groups instead.

    Add the groups to `numbers`, up to `MAX_GROUPS`. The heads of the remaining groups stay counted as due jobs,
    and the lane as not exact.
    """
    counts.is_exact &= len(heads) >= counts.due
    counts.oldest_due = min((due for number, due in heads if number is None), default=None)
    for number, due in heads:
        if number is None:
            continue
        if number in numbers or len(numbers) < MAX_GROUPS:
            numbers[number] = None
            counts.due -= 1
        else:
            counts.is_exact = False
            counts.oldest_due = _earlier(counts.oldest_due, due)


def paused_queues(connection: apsw.Connection) -> tuple[str, ...]:
    """List the paused queues of a file, sorted by name."""
    return tuple(sorted(strings(connection.execute(PAUSED_QUEUES).get)))


def evaluate_by(connection: apsw.Connection, now: int) -> FindFull:
    """Return a function that finds which combinations of buckets (limit and key) are full now, by the counts in an
    engine's file.
    """

    def find_full(combinations: Collection[tuple[str, ...]]) -> list[tuple[str, ...]]:
        buckets = {bucket for combination in combinations for bucket in combination}
        limits = {family: Limit(most, per) for family, most, per, _ in _limits(connection.execute(LIMITS).get)}
        rows = _states(connection.execute(STATES, (to_json(list(buckets)),)).get)
        states = {bucket: BucketState(running, full_at) for bucket, running, full_at in rows}
        admission = Admission(limits, states, now)
        return [combination for combination in combinations if admission.refusal(combination) is not None]

    return find_full
