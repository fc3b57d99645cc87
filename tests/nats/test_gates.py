"""Gates on NATS: sequences, limits, rates and turns; no job is lost if a message is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event

import pytest

from mainspring.engines.nats import gate_records
from mainspring.engines.nats.gate_records import queue_gate, sequence_gate
from mainspring.jobs.commands import PauseQueue, PutLimit
from mainspring.jobs.limits import Limit, bucket_of
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from tests.nats.servers import Servers
from tests.nats.yard import MICROSECONDS, Yard
from tests.support import PATIENCE

pytestmark = pytest.mark.long

ALL = (bucket_of("all"),)
A = (bucket_of("by tenant", "a"),)
B = (bucket_of("by tenant", "b"),)
KEY = sequence_gate("key")


@pytest.fixture
def yard(nats_server: Servers, nats_prefix: str) -> Iterator[Yard]:
    yard = Yard(nats_server.url, nats_prefix, ManualClock(datetime(2026, 1, 1, tzinfo=UTC)))
    yield yard
    yard.close()


def pass_time(yard: Yard, seconds: float) -> None:
    assert isinstance(yard.clock, ManualClock)
    yard.clock.jump(seconds)


# -- sequences


def test_jobs_of_a_sequence_pass_one_at_a_time_and_in_order(yard: Yard) -> None:
    yard.submit("a", "b", "c", sequence="key")
    yard.submit("other", sequence="another")
    for job_id in "abc":
        assert [ready for ready in yard.ready() if ready != "other"] == [job_id]
        assert yard.start(job_id)
        assert yard.ready() == ["other"]
        yard.end(job_id)
    assert yard.gate(KEY) is None


def test_one_whose_turn_is_earlier_goes_before_a_head_that_has_not_started(yard: Yard) -> None:
    for job_id, age in (("third", 10), ("first", 30), ("second", 20), ("fourth", 10)):
        yard.submit(job_id, sequence="key", limits=ALL, after=-age)
    for job_id in ("first", "second", "third", "fourth"):
        assert yard.ready() == [job_id]
        yard.run(job_id)
    assert yard.gate(*ALL) is None


def test_one_whose_turn_is_earlier_waits_for_a_head_that_has_started(yard: Yard) -> None:
    yard.submit("b", "c", sequence="key", after=-1)
    assert yard.start("b")
    yard.submit("a", sequence="key", after=-2)
    assert yard.ready() == []
    yard.end("b")
    assert yard.ready() == ["a"]


def test_a_retry_holds_its_sequence_until_it_is_due(yard: Yard) -> None:
    yard.submit("a", "b", sequence="key", limits=ALL)
    assert yard.start("a")
    yard.retry("a", after=5)
    assert (yard.ready(), yard.state("a")) == ([], "held")
    pass_time(yard, 5)
    yard.enter("a")
    assert yard.ready() == ["a"]
    yard.run("a")
    assert yard.ready() == ["b"]


def test_a_retry_gives_way_to_one_that_came_meanwhile_with_an_earlier_turn(yard: Yard) -> None:
    yard.submit("b", "c", sequence="key", after=-1)
    assert yard.start("b")
    yard.submit("a", sequence="key", after=-2)
    yard.retry("b", after=5)
    assert yard.ready() == ["a"]
    yard.run("a")
    assert (yard.ready(), yard.state("b")) == ([], "held")  # its turn is before that of c, though it is not due
    pass_time(yard, 5)
    yard.enter("b")
    yard.run("b")
    assert yard.ready() == ["c"]


def test_a_retry_that_steps_aside_lets_the_others_go_first(yard: Yard) -> None:
    yard.submit("a", "b", sequence="key")
    assert yard.start("a")
    pass_time(yard, 1)
    yard.retry("a", keeps_sequence=False)
    assert yard.ready() == ["b"]
    yard.run("b")
    assert yard.ready() == ["a"]


def test_a_job_that_is_called_off_is_passed_over_and_lets_the_next_one_go(yard: Yard) -> None:
    yard.submit("a", "b", "c", "d", sequence="key")
    yard.cancel("b")
    assert yard.ready() == ["a"]
    yard.cancel("a")
    assert yard.ready() == ["c"]
    yard.run("c")
    yard.run("d")
    assert yard.gate(KEY) is None


def test_a_head_that_waits_for_its_limit_holds_up_those_behind(yard: Yard) -> None:
    yard.limit("all", 1)
    yard.submit("busy", limits=ALL)
    yard.submit("a", sequence="key", limits=ALL)
    yard.submit("b", sequence="key")
    assert yard.start("busy")
    assert yard.ready() == []
    yard.end("busy")
    assert yard.ready() == ["a"]
    yard.run("a")
    assert yard.ready() == ["b"]


def test_the_order_of_a_long_line_is_that_of_turns(yard: Yard) -> None:
    yard.submit("head", sequence="key", after=-100)
    ages = [(7 * number) % 40 for number in range(40)]
    for age in ages:
        yard.submit(f"{age:02}", sequence="key", after=age - 50)
    assert yard.start("head")
    yard.end("head")
    order = []
    for _ in ages:
        (job_id,) = yard.ready()
        order.append(job_id)
        yard.run(job_id)
    assert order == sorted(order)


def test_who_is_in_the_way_is_told(yard: Yard) -> None:
    yard.submit("a", "b", "c", sequence="key")
    for is_started in (False, True):
        if is_started:
            assert yard.start("a")
        behind = {job_id: yard.gates.behind(yard.workshop.open(), yard.job(job_id)) for job_id in "abc"}
        assert behind == {"a": None, "b": "a", "c": "a"}


# -- limits


def test_no_more_pass_than_the_limit_says_and_each_end_lets_one_pass(yard: Yard) -> None:
    yard.limit("all", 2)
    yard.submit(*"abcde", limits=ALL)
    assert yard.ready() == ["a", "b"]
    yard.run("a")
    assert yard.ready() == ["b", "c"]
    yard.run("b")
    yard.run("c")
    assert yard.ready() == ["d", "e"]


def test_lines_of_different_keys_take_turns_before_a_gate_that_they_share(yard: Yard) -> None:
    yard.limit("all", 1)
    yard.limit("by tenant", 9)
    yard.submit("a0", "a1", "a2", limits=ALL + A)
    yard.submit("b0", "b1", limits=ALL + B)
    order = []
    for _ in range(5):
        (job_id,) = yard.ready()
        order.append(job_id)
        yard.run(job_id)
    assert order == ["a0", "a1", "b0", "a2", "b1"]


def test_a_full_bucket_holds_up_no_other(yard: Yard) -> None:
    yard.limit("all", 2)
    yard.limit("by tenant", 1)
    yard.submit("a0", "a1", "a2", limits=ALL + A)
    yard.submit("b0", limits=ALL + B)
    yard.submit("plain", limits=(bucket_of("unknown", "x"),))
    assert yard.ready() == ["a0", "b0", "plain"]


def test_a_job_that_waits_in_one_line_may_have_to_wait_in_another_one_next(yard: Yard) -> None:
    yard.limit("all", 1)
    yard.limit("by tenant", 1)
    yard.submit("x", limits=ALL)
    yard.submit("a0", "a1", limits=ALL + A)
    yard.submit("a only", limits=A)
    assert yard.ready() == ["x", "a only"]  # a0 waits for all, and holds nothing of its tenant meanwhile
    assert yard.start("x")
    yard.end("x")
    assert yard.ready() == ["a only"]  # now a0 waits for its tenant
    yard.run("a only")
    assert yard.ready() == ["a0"]
    yard.run("a0")
    yard.run("a1")
    assert [yard.gate(name) for name in ALL + A] == [None, None]


def test_a_limit_that_is_defined_later_counts_those_that_are_inside(yard: Yard) -> None:
    yard.submit("a", limits=ALL)
    assert yard.start("a")
    yard.limit("all", 1)
    yard.submit("b", limits=ALL)
    assert yard.ready() == []
    yard.end("a")
    assert yard.ready() == ["b"]


def test_a_raised_and_a_dropped_limit_let_jobs_pass_at_once(yard: Yard) -> None:
    yard.limit("all", 1)
    yard.submit(*"abcdefgh", limits=ALL)
    assert yard.limit("all", 3)
    assert yard.ready() == ["a", "b", "c"]
    assert yard.drop_limit("all")
    assert yard.ready() == list("abcdefgh")


def test_more_than_a_draft_may_hold_pass_one_part_after_another(yard: Yard) -> None:
    yard.limit("all", 1)
    numbers = [f"{number:03}" for number in range(130)]
    yard.submit(*numbers, limits=ALL)
    yard.drop_limit("all")
    assert len(yard.ready()) == 51
    for passed in (101, 130):
        assert yard.has_poke(*ALL)
        yard.poke(*ALL)
        assert len(yard.ready()) == passed
    assert yard.ready() == numbers


def test_a_limit_of_another_process_holds_at_once(yard: Yard, nats_server: Servers) -> None:
    other = Yard(nats_server.url, yard.names.prefix, yard.clock)
    try:
        other.submit("a", limits=ALL)
        yard.limit("all", 1)
        other.submit("b", limits=ALL)
        assert yard.ready() == ["a"]
    finally:
        other.close()


def test_the_limit_that_is_in_the_way_is_told_with_some_of_those_inside(yard: Yard) -> None:
    yard.limit("all", 2)
    yard.submit("a", "b", "c", limits=ALL)
    refusal, holders = yard.gates.refusal_of(yard.workshop.open(), yard.job("c"))
    assert refusal is not None
    assert (refusal.bucket, refusal.until, holders) == (*ALL, None, ("a", "b"))
    assert yard.gates.refusal_of(yard.workshop.open(), yard.job("a")) == (None, ())


def test_beyond_some_hundred_keys_lines_are_shared(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_records, "MOST_GROUPS", 4)
    monkeypatch.setattr(gate_records, "SHARED_LINES", 2)
    yard.limit("all", 1)
    names = [f"{number}" for number in range(12)]
    for name in names:
        yard.submit(name, limits=(*ALL, bucket_of("by tenant", name)))
    gate = yard.gate(*ALL)
    assert gate is not None
    assert len(gate.groups) <= 6
    passed = []
    for _ in names:
        (job_id,) = yard.ready()
        passed.append(job_id)
        yard.run(job_id)
    assert sorted(passed) == sorted(names)
    assert yard.gate(*ALL) is None


# -- rates


def test_a_rate_admits_jobs_for_its_tokens_and_a_reminder_comes_when_it_has_more(yard: Yard) -> None:
    yard.limit("all", 2, per=10)
    yard.submit(*"abcd", limits=ALL)
    assert yard.ready() == ["a", "b"]
    yard.run("a")
    yard.run("b")
    assert yard.has_poke(*ALL)
    for job_id in "cd":
        pass_time(yard, 4.999)
        yard.poke(*ALL)
        assert yard.ready() == []
        pass_time(yard, 0.001)
        yard.poke(*ALL)
        assert yard.ready() == [job_id]
        yard.run(job_id)


def test_a_token_is_used_up_by_the_start_however_long_a_job_was_ready(yard: Yard) -> None:
    yard.limit("all", 2, per=10)
    yard.submit(*"abcd", limits=ALL)
    pass_time(yard, 3600)
    yard.poke(*ALL)
    assert yard.ready() == ["a", "b"]  # else four would start at once
    yard.run("a")
    yard.run("b")
    assert yard.ready() == []
    pass_time(yard, 5)
    yard.poke(*ALL)
    assert yard.ready() == ["c"]


def test_a_start_that_was_not_used_is_given_back(yard: Yard) -> None:
    yard.limit("all", 1, per=3600)
    yard.submit("a", "b", limits=ALL)
    yard.cancel("a")
    assert yard.ready() == ["b"]
    yard.run("b")
    yard.submit("c", limits=ALL)
    assert yard.ready() == []


def test_a_raised_rate_does_not_wait_for_the_old_one(yard: Yard) -> None:
    yard.limit("all", 1, per=3600)
    yard.submit("a", "b", limits=ALL)
    yard.run("a")
    yard.limit("all", 1, per=1)
    assert yard.ready() == []
    pass_time(yard, 1)
    yard.poke(*ALL)
    assert yard.ready() == ["b"]


def test_the_job_that_waited_longest_gets_a_token_that_was_not_handed_out(yard: Yard) -> None:
    yard.limit("all", 1, per=10)
    yard.submit("a", limits=ALL)
    yard.submit("b", limits=ALL + A)
    yard.run("a")
    pass_time(yard, 10)
    yard.submit("c", limits=ALL + B)
    assert yard.ready() == ["b"]


def test_an_unused_rate_is_forgotten_when_it_is_full(yard: Yard) -> None:
    yard.limit("all", 1, per=10)
    yard.submit("a", limits=ALL)
    yard.run("a")
    gate = yard.gate(*ALL)
    assert gate is not None  # for its token is not back yet
    pass_time(yard, 10)
    yard.submit("b", limits=ALL)
    assert yard.ready() == ["b"]


# -- turns


def test_a_tenant_with_many_jobs_leaves_room_in_the_lane_for_others(yard: Yard) -> None:
    yard.limit("by tenant", 100)
    yard.submit(*(f"a{number}" for number in range(50)), limits=A)
    yard.submit("b0", "b1", limits=B)
    order = []
    for _ in range(8):
        job_id = yard.ready()[0]
        order.append(job_id)
        assert yard.start(job_id)
    assert order == ["a0", "a1", "a2", "a3", "b0", "b1", "a4", "a5"]


def test_all_jobs_of_a_tenant_can_run_at_once_if_no_other_tenant_is_there(yard: Yard) -> None:
    yard.limit("by tenant", 100)
    yard.submit(*(f"{number:02}" for number in range(20)), limits=A)
    for number in range(20):
        assert yard.ready()[0] == f"{number:02}"
        assert yard.start(f"{number:02}")
    gate = yard.gate(*A)
    assert gate is not None
    assert gate.inside == 20


# -- queues


def test_a_paused_queue_occupies_no_limit(yard: Yard) -> None:
    yard.limit("all", 1)
    yard.submit("a", queue="paused", limits=ALL)
    yard.submit("b", queue="open", limits=ALL)
    assert yard.ready() == ["a"]
    fired = yard.names.ready_of(
        "paused", "ping", 1, "plain"
    )  # by a schedule of the server: there is nothing in it
    yard.workshop.carry_through(lambda ws: ws.draft.put(fired, b""))
    yard.pause("paused")
    yard.link.api(f"STREAM.PURGE.{yard.names.stream}", {"filter": fired})
    yard.submit("c", queue="paused", limits=ALL)
    assert yard.ready() == ["b"]
    yard.run("b")
    assert yard.ready() == []
    yard.pause("paused", is_paused=False)
    assert yard.ready() == ["a"]
    yard.run("a")
    yard.run("c")
    assert (yard.gate(queue_gate("paused")), yard.gate(*ALL)) == (None, None)


# -- what may go wrong


def test_a_message_in_a_line_that_should_be_gone_lets_no_job_pass_twice(yard: Yard) -> None:
    yard.submit("a", "b", "c", sequence="key")
    lost = yard.names.waiting(KEY, "", "b")
    message = yard.link.read_one(lost).data
    yard.run("a")
    yard.run("b")
    yard.workshop.carry_through(lambda ws: ws.draft.put(lost, message))  # its purge was lost
    yard.submit("d", sequence="key")
    yard.run("c")
    assert yard.ready() == ["d"]
    yard.run("d")
    assert yard.job("b").status is JobStatus.COMPLETED
    assert yard.gate(KEY) is None


def test_stale_messages_of_whole_pages_are_read_over(yard: Yard) -> None:
    yard.submit("a", *(f"stale {number}" for number in range(20)), sequence="key")
    messages = yard.scan(yard.names.line(KEY, ""))
    for number in range(20):
        yard.cancel(f"stale {number}")
    yard.workshop.carry_through(lambda ws: [ws.draft.put(at, entry.data) for at, entry in messages])
    yard.submit("b", sequence="key")
    yard.run("a")
    assert yard.ready() == ["b"]


def test_those_that_a_lagging_server_does_not_show_yet_are_looked_for_again(yard: Yard) -> None:
    yard.submit("a", "b", sequence="key")
    subject = yard.names.waiting(KEY, "", "b")
    message = yard.link.read_one(subject).data
    yard.link.api(f"STREAM.PURGE.{yard.names.stream}", {"filter": subject})
    yard.run("a")
    assert (yard.ready(), yard.has_poke(KEY)) == ([], True)
    yard.workshop.carry_through(lambda ws: ws.draft.put(subject, message))
    yard.poke(KEY)
    assert yard.ready() == ["b"]


def test_a_job_that_enters_twice_counts_once(yard: Yard) -> None:
    yard.limit("all", 1)
    yard.submit("a", "b", limits=ALL)
    for job_id in "abab":
        yard.enter(job_id)
    yard.run("a")
    yard.run("b")
    assert yard.gate(*ALL) is None


def test_what_leaves_and_comes_back_in_one_step_is_in_line_again(yard: Yard) -> None:
    yard.limit("all", 1)
    yard.submit("a", "b", limits=ALL)
    assert yard.start("a")
    yard.retry("a")
    assert yard.ready() == ["b"]
    yard.run("b")
    assert yard.ready() == ["a"]


def test_names_of_any_kind_keep_apart(yard: Yard) -> None:
    yard.limit("sequence", 1)
    odd = ["", " ", "a.b", "*", ">", "ä" * 300, "\x1f", "all\x1f", "x" * 2_000]
    for name in odd:
        yard.submit(f"s{name}", sequence=name)
        yard.submit(f"l{name}", limits=(bucket_of("sequence", f"k{name}"),))
    assert len(yard.ready()) == 2 * len(odd)


# -- settings


def test_settings_are_the_same_for_all_processes(yard: Yard, nats_server: Servers) -> None:
    other = Yard(nats_server.url, yard.names.prefix, yard.clock)
    try:
        limit = PutLimit("all", 2, MICROSECONDS, ("tenant",))
        assert [yard.book.arrange(limit), yard.book.arrange(limit)] == [True, False]
        assert [yard.book.arrange(PauseQueue("q", paused)) for paused in (False, True, True)] == [
            False,
            True,
            False,
        ]
        assert other.book.refresh_if_needed()
        assert not other.book.refresh_if_needed()
        assert (other.book.limits, other.book.list_limits()) == ({"all": Limit(2, MICROSECONDS)}, [limit])
        assert other.book.paused == {"q"}
        assert other.book.arrange(PauseQueue("q", False))
        yard.book.refresh()
        assert yard.book.paused == frozenset()
    finally:
        other.close()


def test_a_note_tells_others_that_settings_have_changed(yard: Yard, nats_server: Servers) -> None:
    heard = Event()
    yard.link.subscribe(f"{yard.names.notes}settings", lambda _subject, _data: heard.set())
    yard.book.arrange(PauseQueue("q", True))
    assert heard.wait(PATIENCE)
