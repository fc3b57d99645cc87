"""The projection: compared with a dict and with the engine, killed, damaged, and opened by two."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import apsw
import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from mainspring.engines.sqlite import SqliteEngine, projection
from mainspring.engines.sqlite.projection import SqliteProjection
from mainspring.errors import EngineUnavailable, StoreCorrupt
from mainspring.jobs.engine import Engine
from mainspring.jobs.projection import ProjectedJob, Projection
from mainspring.jobs.records import (
    Attempt,
    FollowUp,
    JobRecord,
    NewJob,
    OutcomeKind,
    Page,
    Progress,
    Query,
    UniqueKey,
)
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.bench import Bench
from tests.programs import Program, program, read_line
from tests.support import PATIENCE, amount
from tests.unit.engines.projected_jobs import forget, put, record

pytestmark = pytest.mark.long

EVERYTHING = Query(limit=10_000)


@contextmanager
def open_projection(path: Path, source: str = "stream") -> Iterator[SqliteProjection]:
    copy = SqliteProjection(path)
    copy.open(source)
    try:
        yield copy
    finally:
        copy.close()


@pytest.fixture
def copy(path: Path) -> Iterator[SqliteProjection]:
    with open_projection(path) as copy:
        yield copy


def ids(found: Page) -> list[str]:
    return [found_record.id for found_record in found.records]


# -- what it says, compared with a dict

IDS = [f"job {number}" for number in range(8)]
NAMES = ["a", "b", "ä'\""]
next_times = st.integers(0, 9)
numbers = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
codecs = {"json": texts.map(msgspec.json.encode), "msgpack": st.binary(max_size=8)}
follow_ups = st.builds(
    FollowUp,
    st.sampled_from(NAMES),
    texts,
    st.integers(0, 2),
    limits=st.sampled_from([(), (("family", ("user",)),)]),
    follow_up=st.none() | st.just(FollowUp("last", "default", 1, expires=5)),
)
attempts = st.builds(Attempt, numbers, st.none() | next_times, next_times, st.just("failure"), texts)
counters = st.fixed_dictionaries(
    dict.fromkeys(["token", "starts", "failures", "timeouts", "crashes", "interruptions"], numbers)
)
common = st.fixed_dictionaries(
    {
        "type": st.sampled_from(NAMES),
        "queue": st.sampled_from(NAMES),
        "priority": st.integers(0, 2),
        "status": st.sampled_from(JobStatus),
        "due": next_times,
        "created": next_times,
        "stop_requested": st.booleans(),
        "steps_aside": st.booleans(),
        "history": st.lists(attempts, max_size=2).map(tuple),
        "limits": st.lists(st.sampled_from(["one", "two:ä", 'three:"']), max_size=2, unique=True).map(tuple),
    }
)
rare = st.fixed_dictionaries(
    {},
    optional={
        "owner": numbers,
        "started": next_times,
        "finished": next_times,
        "error": texts,
        "origin": texts,
        "replayed_as": texts,
        "sequence": texts,
        "unique_key": st.sampled_from(NAMES),
        "expires": next_times,
        "schedule": st.sampled_from(NAMES),
        "occurrence": next_times,
        "headers": st.dictionaries(texts, texts, max_size=2),
        "follow_up": follow_ups,
        "progress": st.builds(
            Progress, st.floats(0, 1e6), st.none() | st.floats(0, 1e6), st.none() | texts, numbers
        ),
    },
)


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    codec = draw(st.sampled_from(sorted(codecs)))
    packed = codecs[codec]
    payload, result = draw(packed), draw(st.none() | packed)
    fields = {"codec": codec, "payload": payload, "result": result}
    return {**draw(common), **draw(counters), **draw(rare), **fields}


steps = st.tuples(st.sampled_from(IDS), st.none() | contents())
queries = st.builds(
    Query,
    status=st.none() | st.sampled_from(JobStatus),
    queue=st.none() | st.sampled_from(NAMES),
    type=st.none() | st.sampled_from(NAMES),
    ids=st.none() | st.lists(st.sampled_from(IDS), unique=True).map(tuple),
    is_replayed=st.none() | st.booleans(),
    due_until=st.none() | next_times,
    is_limited=st.none() | st.booleans(),
    limit=st.integers(1, 9),
)


class Oracle:
    """All jobs in a dict, in the order of their submission."""

    def __init__(self) -> None:
        self.jobs: dict[str, ProjectedJob] = {}
        self._places = 0

    def change(self, job_id: str, fields: dict[str, Any] | None) -> ProjectedJob:
        """Make or update a job, or forget it; return the change. A job made again has another place."""
        if fields is None:
            self.jobs.pop(job_id, None)
            return forget(job_id)
        before = self.jobs.get(job_id)
        self._places += before is None
        change = put(self._places if before is None else before.place, job_id, **fields)
        self.jobs[job_id] = change
        return change

    def find(self, query: Query) -> list[JobRecord]:
        return [job for job in self.records() if _fits(job, query)]

    def counts(self, **wanted: str) -> dict[JobStatus, int]:
        jobs = [job for job in self.records() if _fits(job, Query(**wanted))]  # type: ignore[arg-type]
        found = Counter(job.status for job in jobs)
        found[JobStatus.FAILED] -= sum(
            job.status is JobStatus.FAILED and job.replayed_as is not None for job in jobs
        )
        return {status: found[status] for status in JobStatus}

    def records(self) -> list[JobRecord]:
        in_order = sorted(self.jobs.values(), key=lambda change: change.place)
        return [change.record for change in in_order if change.record is not None]


def _fits(job: JobRecord, query: Query) -> bool:
    wanted = {"status": query.status, "queue": query.queue, "type": query.type}
    answers = {"replayed_as": query.is_replayed, "limits": query.is_limited}
    return (
        all(value in (None, getattr(job, name)) for name, value in wanted.items())
        and (query.ids is None or job.id in query.ids)
        and (query.due_until is None or job.due <= query.due_until)
        and all(is_so in (None, getattr(job, name) not in (None, ())) for name, is_so in answers.items())
    )


def pages(copy: SqliteProjection | Engine, query: Query) -> list[JobRecord]:
    """Follow a list to its end; each page but the last is full."""
    found: list[JobRecord] = []
    while True:
        page = copy.find(query)
        found += page.records
        if page.end is None:
            return found
        assert len(page.records) == query.limit
        query = msgspec.structs.replace(query, after=page.end)


@settings(max_examples=amount(20, thorough=100))
@given(st.lists(st.lists(steps, max_size=6), max_size=5), st.lists(queries, min_size=1, max_size=5))
def test_lists_and_counts_are_those_of_a_dict(
    batches: list[list[tuple[str, dict[str, Any] | None]]], wanted: list[Query]
) -> None:
    oracle = Oracle()
    with TemporaryDirectory() as folder, open_projection(Path(folder) / "copy.db") as copy:
        for position, batch in enumerate(batches, 1):
            changes = [oracle.change(job_id, fields) for job_id, fields in batch]
            copy.apply(changes, position)
            copy.apply(changes, position)  # once more changes nothing
            assert copy.find(EVERYTHING).records == oracle.records()
        for query in wanted:
            assert pages(copy, query) == oracle.find(query)
        for name in NAMES:
            assert copy.counts(queue=name) == oracle.counts(queue=name)
            assert copy.counts(type=name) == oracle.counts(type=name)
            assert copy.counts(queue=name, type="a") == oracle.counts(queue=name, type="a")
        assert copy.counts() == oracle.counts()
        assert copy.open("stream") == len(batches)


@settings(max_examples=20)
@given(st.lists(steps, max_size=12))
def test_a_copy_that_is_built_anew_has_the_same_order(changes: list[tuple[str, dict[str, Any] | None]]) -> None:
    oracle = Oracle()
    with TemporaryDirectory() as folder, open_projection(Path(folder) / "copy.db") as copy:
        for position, change in enumerate(changes, 1):
            copy.apply([oracle.change(*change)], position)
        before = copy.find(EVERYTHING)
        copy.reset()
        assert copy.find(EVERYTHING).records == []
        copy.apply(list(reversed(oracle.jobs.values())), len(changes))
        assert copy.find(EVERYTHING) == before


# -- what it says, compared with the engine


def submit_all_kinds(bench: Bench) -> None:
    common: dict[str, Any] = {"payload": b"{}", "codec": "json", "due": bench.engine.now()}
    bench.engine.submit(
        [
            NewJob("plain", "ping", "default", 1, **common),
            NewJob("limited", "ping", "mail", 2, limits=("mail", "user:7"), **common),
            NewJob("in line", "ping", "mail", 1, sequence="s", steps_aside=True, expires=10**17, **common),
            NewJob("behind", "ping", "mail", 1, sequence="s", headers={"trace": "1"}, **common),
            NewJob("unique", "ping", "default", 0, unique=UniqueKey("k", (JobStatus.PENDING,)), **common),
            NewJob("third", "other", "default", 1, schedule="hourly", occurrence=3, **common),
            NewJob("first of two", "other", "default", 1, follow_up=FollowUp("ping", "mail", 1), **common),
        ]
    )


def test_lists_and_counts_are_those_of_the_engine(bench: Bench, tmp_path: Path) -> None:
    bench.submit("to fail", "to complete")
    worker = bench.enroll()
    for lease, kind in zip(bench.take(worker), (OutcomeKind.FAILED, OutcomeKind.COMPLETED), strict=True):
        bench.settle(worker, lease, kind)
    submit_all_kinds(bench)
    records = bench.engine.find(EVERYTHING).records
    assert len(records) == 9
    with open_projection(tmp_path / "copy.db") as copy:
        copy.apply([ProjectedJob(job.id, place, job) for place, job in enumerate(records, 1)], 1)
        assert copy.find(EVERYTHING).records == records
        assert copy.counts() == bench.engine.counts()
        for queue in ("default", "mail", "none"):
            assert copy.counts(queue=queue) == bench.engine.counts(queue=queue)
        for query in (
            Query(limit=2),
            Query(queue="mail", limit=2),
            Query(type="ping", status=JobStatus.PENDING, limit=3),
            Query(is_limited=True),
            Query(is_limited=False, limit=4),
            Query(ids=("third", "no such", "plain")),
        ):
            assert pages(copy, query) == pages(bench.engine, query)


def test_it_is_what_an_engine_asks_for(copy: SqliteProjection) -> None:
    asked_for: Projection = copy
    assert asked_for.description == f"projection {copy.path}"


# -- it has no policies


def test_two_jobs_may_have_what_the_engine_gives_to_one(copy: SqliteProjection) -> None:
    shared = {"unique_key": "k", "schedule": "hourly", "occurrence": 3}
    copy.apply([put(1, "old", **shared), put(2, "new", **shared)], 2)
    assert ids(copy.find(EVERYTHING)) == ["old", "new"]
    copy.apply([forget("old")], 3)
    assert ids(copy.find(EVERYTHING)) == ["new"]
    copy.apply([put(3, "old", **shared)], 4)
    assert copy.find(EVERYTHING).records == [record("new", **shared), record("old", **shared)]


def test_a_job_keeps_its_place_until_it_is_made_again(copy: SqliteProjection) -> None:
    copy.apply([put(1, "a"), put(2, "b"), put(3, "c")], 3)
    copy.apply([put(1, "a", queue="other", limits=("one",))], 4)
    assert ids(copy.find(EVERYTHING)) == ["a", "b", "c"]
    copy.apply([forget("a"), put(6, "a")], 6)
    assert ids(copy.find(EVERYTHING)) == ["b", "c", "a"]
    assert copy.counts()[JobStatus.PENDING] == 3


@settings(max_examples=amount(25, thorough=100))
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.integers(0, 9)), min_size=1, max_size=6),
        max_size=8,
    ),
    st.lists(st.integers(1, 3), min_size=8, max_size=8),
)
def test_jobs_that_were_submitted_in_the_same_instant_are_all_there(
    batches: list[list[tuple[str, bool, int]]], places: list[int]
) -> None:
    place_of = dict(zip("abcdefgh", places, strict=True))
    expected: dict[str, int] = {}
    with TemporaryDirectory() as folder, open_projection(Path(folder) / "copy.db") as copy:
        for position, batch in enumerate(batches, 1):
            for job_id, is_there, starts in batch:
                expected.pop(job_id, None)
                expected |= {job_id: starts} if is_there else {}
            copy.apply(
                [
                    put(place_of[job_id], job_id, created=place_of[job_id], starts=starts)
                    if is_there
                    else forget(job_id)
                    for job_id, is_there, starts in batch
                ],
                position,
            )
            found = pages(copy, Query(limit=3))
            assert {job.id: job.starts for job in found} == expected
            assert len(found) == len(expected)


def test_what_cannot_be_applied_leaves_everything_as_it_was(copy: SqliteProjection) -> None:
    copy.apply([put(1, "a")], 1)
    with pytest.raises(Exception, match="refused"):
        copy.apply([forget("a"), put(2, "b", queue="new"), put(3, "c", due=None, queue="new")], 3)
    copy.apply([put(2, "b", queue="new")], 2)
    assert ids(copy.find(EVERYTHING)) == ["a", "b"]
    assert copy.open("stream") == 2


# -- where it goes on


def test_it_goes_on_where_it_stopped(path: Path) -> None:
    copy = SqliteProjection(path)
    assert copy.open("stream") == 0
    copy.apply([put(1, "a")], 17)
    copy.close()
    assert copy.open("stream") == 17
    assert ids(copy.find(EVERYTHING)) == ["a"]
    copy.close()


def test_after_a_reset_it_begins_at_the_beginning(copy: SqliteProjection) -> None:
    copy.apply([put(1, "a")], 17)
    copy.reset()
    assert copy.open("stream") == 0
    assert sum(copy.counts().values()) == 0


def fill(path: Path, jobs: int = 1) -> None:
    with open_projection(path) as copy:
        copy.apply([put(place, f"job {place}") for place in range(1, jobs + 1)], 17)


def assert_begins_anew(path: Path, caplog: pytest.LogCaptureFixture, why: str, source: str = "stream") -> None:
    copy = SqliteProjection(path)
    assert copy.open(source) == 0
    try:
        assert sum(copy.counts().values()) == 0
        copy.apply([put(1, "new")], 1)
        assert ids(copy.find(EVERYTHING)) == ["new"]
    finally:
        copy.close()
    (line,) = caplog.messages
    assert str(path) in line
    assert why in line


def test_a_copy_of_another_stream_begins_anew(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(path)
    assert_begins_anew(path, caplog, "a copy of stream, and not of other", source="other")


def test_a_copy_with_other_tables_begins_anew(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path)
    monkeypatch.setattr(projection, "VERSION", projection.VERSION + 1)
    assert_begins_anew(path, caplog, "another version")


@pytest.mark.parametrize(
    "begin", [0, 4096, 40_960], ids=["from the start", "from the second page", "in the middle"]
)
def test_a_damaged_copy_begins_anew(path: Path, caplog: pytest.LogCaptureFixture, begin: int) -> None:
    fill(path, jobs=1_000)
    data = bytearray(path.read_bytes())
    data[begin : begin + 8192] = bytes(range(256)) * 32
    path.write_bytes(data)
    assert_begins_anew(path, caplog, "damaged")


def test_a_copy_that_was_cut_off_begins_anew(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(path, jobs=1_000)
    path.write_bytes(path.read_bytes()[:20_000])
    assert_begins_anew(path, caplog, "damaged")


def test_damage_that_is_found_while_it_is_open_is_called_so_and_a_reset_helps(path: Path) -> None:
    fill(path, jobs=1_000)
    with open_projection(path) as copy:
        path.write_bytes(path.read_bytes()[:8192] + os.urandom(50_000))
        with pytest.raises(StoreCorrupt, match=r"damaged .*restart"):
            copy.find(EVERYTHING)
        copy.reset()
        copy.apply([put(1, "new")], 1)
        assert ids(copy.find(EVERYTHING)) == ["new"]


# -- files that are not projections


def refuse(path: Path) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        SqliteProjection(path).open("stream")
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_the_store_of_an_engine_is_never_thrown_away(path: Path, bench: Bench) -> None:
    bench.submit("job")
    for _ in range(2):
        assert "not a projection; give the projection another path" in refuse(path)
    assert bench.find_ids() == ["job"]


def test_a_file_that_was_never_a_projection_is_left_alone(path: Path) -> None:
    path.write_bytes(b"Dear diary, " * 1_000)
    for _ in range(2):
        assert "not a database" in refuse(path)
    assert path.read_bytes() == b"Dear diary, " * 1_000


def test_an_engine_does_not_take_a_projection_for_its_store(path: Path) -> None:
    fill(path)
    with pytest.raises(StoreCorrupt, match="another application"):
        SqliteEngine(path).open(lambda: None)


def test_places_where_no_file_can_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "is a directory" in refuse(tmp_path / "folder")
    assert "a directory that exists" in refuse(tmp_path / "no" / "such" / "copy.db")


def test_an_empty_file_becomes_a_projection(path: Path) -> None:
    path.touch()
    fill(path)
    with open_projection(path) as copy:
        assert ids(copy.find(EVERYTHING)) == ["job 1"]


def test_a_projection_that_is_not_open_says_so(path: Path) -> None:
    copy = SqliteProjection(path)
    for use in (copy.counts, copy.reset, lambda: copy.apply([], 1), lambda: copy.find(EVERYTHING)):
        with pytest.raises(EngineUnavailable, match=r"not open in this process; open\(\) it first"):
            use()
    copy.close()
    assert not path.exists()


# -- threads


def test_readers_see_whole_batches_and_never_go_back(copy: SqliteProjection) -> None:
    is_done = Event()

    def read() -> int:
        seen, rounds = 0, 0
        while not is_done.is_set() or not rounds:
            tokens = {found.token for found in copy.find(EVERYTHING).records}
            assert len(tokens) == 1
            assert seen <= min(tokens)
            assert sum(copy.counts().values()) == 50
            seen, rounds = min(tokens), rounds + 1
        return rounds

    copy.apply([put(place, f"job {place}") for place in range(1, 51)], 0)
    with ThreadPoolExecutor(3) as readers:
        reading = [readers.submit(read) for _ in range(3)]
        try:
            for position in range(1, 101):
                copy.apply([put(place, f"job {place}", token=position) for place in range(1, 51)], position)
        finally:
            is_done.set()
        assert all(reader.result(PATIENCE) > 0 for reader in reading)


def test_readers_are_not_disturbed_while_it_begins_anew(copy: SqliteProjection) -> None:
    is_done = Event()

    def read() -> None:
        while not is_done.is_set():
            assert len(copy.find(EVERYTHING).records) in (0, 1)

    with ThreadPoolExecutor(2) as readers:
        reading = [readers.submit(read) for _ in range(2)]
        try:
            for position in range(1, 11):
                copy.apply([put(1, "job")], position)
                copy.reset()
        finally:
            is_done.set()
        for reader in reading:
            reader.result(PATIENCE)


# -- processes

PROLOGUE = """
import os, sys
from mainspring.engines.sqlite.projection import SqliteProjection
from mainspring.jobs.records import Query
from tests.unit.engines.projected_jobs import forget, put
copy = SqliteProjection(sys.argv[1])
"""
WRITING = """
position = copy.open("stream")
while True:
    position += 1
    changes = [put(place, f"job {place}", token=position, queue=f"queue {position}") for place in range(1, 101)]
    copy.apply([*changes, put(100 + position, f"new {position}"), forget(f"new {position - 1}")], position)
    print(position, flush=True)
"""
HOLDING = """
copy.open("stream")
print("open", flush=True)
sys.stdin.read()
"""
FORKING = """
copy.open("stream")
copy.apply([put(1, "job")], 1)
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    try:
        copy.find(Query())
    except Exception as error:
        print(f"{error}\\n", end="", flush=True)  # in one piece: two processes write
    os.close(writing)
    os.read(reading, 1)
    os._exit(0)
copy.apply([put(2, "other")], 2)
copy.close()
other = SqliteProjection(sys.argv[1])
position = other.open("stream")  # though the child lives
print(f"reopened at {position}\\n", end="", flush=True)
os.close(writing)
os.waitpid(child, 0)
"""


def child(script: str, path: Path) -> AbstractContextManager[Program]:
    return program("-c", PROLOGUE + script, str(path), folder=Path(__file__).parents[3])


def lines(process: Program, number: int) -> Sequence[str]:
    return [read_line(process).strip() for _ in range(number)]


def test_what_a_killed_process_leaves_is_complete_up_to_its_position(path: Path) -> None:
    last = 0
    for _ in range(3):
        with child(WRITING, path) as process:
            said = int(lines(process, 15)[-1])
            process.kill()
            process.wait(PATIENCE)
        copy = SqliteProjection(path)
        position = copy.open("stream")
        found = copy.find(EVERYTHING).records
        copy.close()
        assert said == last + 15
        assert position >= said
        assert {(job.token, job.queue) for job in found[:-1]} == {(position, f"queue {position}")}
        assert (len(found), found[-1].id) == (101, f"new {position}")
        assert integrity(path) == "ok"
        last = position


def integrity(path: Path) -> str:
    connection = apsw.Connection(str(path))
    try:
        return str(connection.execute("PRAGMA integrity_check").get)
    finally:
        connection.close()


def test_the_second_process_is_told_who_has_it_and_gets_it_when_that_one_dies(path: Path) -> None:
    fill(path)
    with child(HOLDING, path) as process:
        assert lines(process, 1) == ["open"]
        with pytest.raises(EngineUnavailable) as caught:
            SqliteProjection(path).open("stream")
        assert str(caught.value) == (
            f"projection {path}: process {process.pid} has it open, and it serves one process at a time; "
            "give each process a path of its own, with projection= in its URL"
        )
        process.kill()
        process.wait(PATIENCE)
        with open_projection(path) as copy:
            assert ids(copy.find(EVERYTHING)) == ["job 1"]


def test_the_second_in_one_process_is_refused_as_well(path: Path, copy: SqliteProjection) -> None:
    assert "a path of its own" in refuse(path)
    link = path.with_name("link.db")
    link.symlink_to(path)
    with pytest.raises(EngineUnavailable, match="a path of its own"):
        SqliteProjection(link).open("stream")


def test_a_forked_child_has_no_projection_and_keeps_no_lock(path: Path) -> None:
    with child(FORKING, path) as process:
        said = set(lines(process, 2))
    refused = "it is not open in this process; open() it first; a forked child must open a projection of its own"
    assert said == {f"projection {path}: {refused}", "reopened at 2"}
