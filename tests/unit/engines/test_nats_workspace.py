"""Workspaces: what was read must still be there when it is written, and work is done again if it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

import pytest
from msgspec.structs import replace

from mainspring.engines.nats.drafts import MOST_PUTS, NOTHING, Draft, Put, StreamEntry
from mainspring.engines.nats.link import Link
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.stored import StoredJob, encode, make_job
from mainspring.engines.nats.workspace import MOST_TRIES, TooLarge, Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs.records import NewJob
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

NOW = 1_700_000_000 * MICROSECONDS
NAMES = Names("p")


class FakeLink:
    """A server in memory: subjects with one message each, drafts that are stored all or none."""

    def __init__(self) -> None:
        self.held: dict[str, StreamEntry] = {}
        self.last = 0
        self.last_record = 0
        self.reads: list[list[str]] = []
        self.drafts: list[list[str]] = []
        self.address = "memory"
        self.on_commit: Callable[[], None] = lambda: None

    def now(self) -> int:
        return NOW

    def read(self, subjects: Iterable[str]) -> dict[str, StreamEntry]:
        wanted = list(subjects)
        if wanted:
            self.reads.append(wanted)
        return {subject: self.held.get(subject, NOTHING) for subject in wanted}

    def store(self, subject: str, data: bytes) -> None:
        """Write as another process."""
        self.last += 1
        self.held[subject] = StreamEntry(self.last, data)

    def commit(self, draft: Draft) -> int | None:
        self.on_commit()
        if any(not self._is_as_expected(put) for put in draft.puts):
            return None
        self.drafts.append([put.subject for put in draft.puts])
        for put in draft.puts:
            self.store(put.subject, put.data)
        return self.last - len(draft.puts) + 1

    def store_each(self, puts: Sequence[Put]) -> list[int | None]:
        answers: list[int | None] = []
        for put in puts:
            is_good = self._is_as_expected(put)
            if is_good:
                self.store(put.subject, put.data)
            answers.append(self.last if is_good else None)
        return answers

    def note_record(self, revision: int) -> None:
        self.last_record = max(self.last_record, revision)

    def _is_as_expected(self, put: Put) -> bool:
        return put.expected is None or put.expected == self.held.get(put.subject, NOTHING).revision


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def workshop(link: FakeLink) -> Workshop:
    return Workshop(cast("Link", link), NAMES)


def job(job_id: str = "job", status: JobStatus = JobStatus.PENDING, finished: int | None = None) -> StoredJob:
    made = make_job(NewJob(job_id, "ping", "default", 1, NOW, b"{}", "json"), now=NOW, place=1, nonce="n")
    return replace(made, status=status, finished=finished)


# -- reading and writing


def test_a_subject_is_read_once_and_what_was_written_here_is_seen(link: FakeLink, workshop: Workshop) -> None:
    link.store("a", b"1")
    workspace = workshop.open()
    assert (workspace.get("a"), workspace.get("a"), workspace.get("none")) == (b"1", b"1", b"")
    workspace.put("a", b"2")
    assert (workspace.get("a"), workspace.entry("a").data) == (b"2", b"1")
    assert link.reads == [["a"], ["none"]]


def test_what_was_read_and_written_must_not_have_changed(link: FakeLink, workshop: Workshop) -> None:
    link.store("a", b"1")
    workspace = workshop.open()
    workspace.put("a", workspace.get("a") + b"x")
    workspace.put("new", b"y")
    link.store("a", b"2")
    assert not workshop.commit(workspace)
    assert link.held.keys() == {"a"}, "all or none"


def test_what_was_not_there_when_it_was_read_must_still_not_be_there(link: FakeLink, workshop: Workshop) -> None:
    workspace = workshop.open()
    workspace.put("new", b"ours")
    link.store("new", b"theirs")
    assert not workshop.commit(workspace)
    assert link.held["new"].data == b"theirs"


def test_what_was_only_read_may_change(link: FakeLink, workshop: Workshop) -> None:
    link.store("a", b"1")
    workspace = workshop.open()
    workspace.put("b", workspace.get("a"))
    link.store("a", b"2")
    assert workshop.commit(workspace)


def test_work_is_done_again_from_what_is_there_until_no_other_process_was_quicker(
    link: FakeLink, workshop: Workshop
) -> None:
    rivals = [b"1", b"12"]
    done: list[str] = []

    def interfere() -> None:
        if rivals:
            link.store("a", rivals.pop(0))

    def work(workspace: Workspace) -> bytes:
        seen = workspace.get("a")
        workspace.put("a", seen + b"x")
        workspace.draft.then(lambda: done.append("then"))
        return seen

    link.on_commit = interfere
    assert workshop.carry_through(work) == b"12"
    assert link.held["a"].data == b"12x"
    assert done == ["then"], "what follows is done once, for the work that was stored"


def test_work_that_is_never_stored_is_given_up(link: FakeLink, workshop: Workshop) -> None:
    tries: list[int] = []

    def work(workspace: Workspace) -> None:
        tries.append(1)
        workspace.put("a", workspace.get("a") + b"x")

    link.on_commit = lambda: link.store("a", b"")
    with pytest.raises(
        EngineUnavailable, match=f"others have changed the same things {MOST_TRIES} times in a row"
    ):
        workshop.carry_through(work)
    assert len(tries) == MOST_TRIES


# -- jobs


def test_a_job_that_has_ended_is_forgotten_when_its_time_is_over(link: FakeLink, workshop: Workshop) -> None:
    workshop.retention = {JobStatus.COMPLETED: 60 * MICROSECONDS}
    workspace = workshop.open()
    workspace.put_job(job("new", JobStatus.COMPLETED, NOW - 20 * MICROSECONDS))
    workspace.put_job(job("old", JobStatus.COMPLETED, NOW - 90 * MICROSECONDS))
    workspace.put_job(job("failed", JobStatus.FAILED, NOW))
    workspace.put_job(job("waiting"))
    headers = {put.subject: put.headers for put in workspace.finish().puts}
    assert headers == {
        NAMES.job("new"): {"Nats-TTL": "40s"},
        NAMES.job("old"): {"Nats-TTL": "1s"},
        NAMES.job("failed"): None,
        NAMES.job("waiting"): None,
    }


def test_a_message_that_carries_a_record_stands_right_behind_it(workshop: Workshop) -> None:
    workspace = workshop.open()
    for job_id in "ab":
        workspace.put_job(job(job_id))
        workspace.announce(f"ready.{job_id}", job(job_id))
    workspace.draft.put("lane", b"x")
    subjects = [put.subject for put in workspace.finish().puts]
    assert subjects == [NAMES.job("a"), "ready.a", NAMES.job("b"), "ready.b", "lane"]


def test_a_message_that_is_taken_away_again_is_not_stored(workshop: Workshop) -> None:
    workspace = workshop.open()
    workspace.put_job(job())
    workspace.announce("ready.job", job())
    workspace.draft.schedule("at.job", "ready.job", NOW)
    workspace.withdraw("ready.job")
    workspace.purge("at.job")
    draft = workspace.finish()
    assert [put.subject for put in draft.puts] == [NAMES.job("job")]
    assert draft.purges == ["at.job"]


def test_revisions_are_those_under_which_records_were_stored(link: FakeLink, workshop: Workshop) -> None:
    link.store("other", b"")
    workspace = workshop.open()
    for job_id in "ab":
        workspace.put_job(job(job_id))
        workspace.announce(f"ready.{job_id}", job(job_id))
    assert workshop.commit(workspace)
    assert workspace.revisions() == {subject: link.held[subject].revision for subject in map(NAMES.job, "ab")}
    assert link.last_record == link.held[NAMES.job("b")].revision


# -- a few records, each for itself


def test_records_that_have_nothing_to_do_with_each_other_are_stored_each_for_itself(
    link: FakeLink, workshop: Workshop
) -> None:
    workspace = workshop.open()
    for job_id in "abc":
        workspace.put_job(job(job_id))
    link.store(NAMES.job("b"), encode(job("b")))
    assert workshop.commit_each(workspace) == {NAMES.job("b")}
    assert workspace.revisions().keys() == {NAMES.job("a"), NAMES.job("c")}
    assert link.drafts == []


@pytest.mark.parametrize("more", ["announce", "put", "purge", "send", "then", "other record"])
def test_whatever_belongs_together_is_stored_as_one(link: FakeLink, workshop: Workshop, more: str) -> None:
    workspace = workshop.open()
    workspace.put_job(job("a"))
    workspace.put_job(job("b"))
    match more:
        case "announce":
            workspace.announce("ready.a", job("a"))
        case "put":
            workspace.draft.put("lane", b"x")
        case "purge":
            workspace.purge("ready.a")
        case "send":
            workspace.draft.send("note")
        case "then":
            workspace.draft.then(lambda: None)
        case _:
            workspace.put(NAMES.gate("f", "g"), b"x")
    link.store(NAMES.job("b"), encode(job("b")))
    assert NAMES.job("a") in workshop.commit_each(workspace)
    assert NAMES.job("a") not in link.held


# -- many


def test_more_than_the_server_takes_as_one_is_split(link: FakeLink, workshop: Workshop) -> None:
    def work(workspace: Workspace, number: int) -> int:
        for part in range(20):
            workspace.put(f"{number}.{part}", b"x")
        return number

    assert workshop.carry_through_many(range(120), work) == list(range(120))
    assert len(link.held) == 2_400
    assert max(map(len, link.drafts)) <= MOST_PUTS


def test_one_that_is_too_large_by_itself_is_refused(link: FakeLink, workshop: Workshop) -> None:
    def work(workspace: Workspace, _: int) -> None:
        for part in range(MOST_PUTS + 1):
            workspace.put(f"{part}", b"x")

    with pytest.raises(TooLarge):
        workshop.carry_through_many([1], work)
    assert link.held == {}


def test_each_of_many_sees_what_those_before_it_did(link: FakeLink, workshop: Workshop) -> None:
    def work(workspace: Workspace, item: bytes) -> bytes:
        before = workspace.get("a")
        workspace.put("a", before + item)
        return before

    assert workshop.carry_through_many([b"x", b"y", b"z"], work, at_once=2) == [b"", b"x", b"xy"]
    assert link.held["a"].data == b"xyz"
