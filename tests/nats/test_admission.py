"""Admission on NATS: sequences, limits, rates and turns; and no job is lost if a message is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event

import pytest

from mainspring.engines.nats import limiters, waiting_lines
from mainspring.engines.nats.limiters import queue_limiter, sequence_limiter
from mainspring.engines.nats.server_clock import DRIFT
from mainspring.jobs.commands import PauseQueue, PutLimit
from mainspring.jobs.limits import Limit, bucket_of
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from tests.nats.admission_driver import MICROSECONDS, AdmissionDriver
from tests.nats.servers import Servers
from tests.support import PATIENCE

pytestmark = pytest.mark.long

ALL = (bucket_of("all"),)
A = (bucket_of("by tenant", "a"),)
B = (bucket_of("by tenant", "b"),)
KEY = sequence_limiter("key")


@pytest.fixture(params=[waiting_lines.FRONT, 1], ids=["", "short fronts"])
def driver(
    nats_server: Servers, nats_prefix: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AdmissionDriver]:
    monkeypatch.setattr(waiting_lines, "FRONT", request.param)  # with short ones, the messages are read often
    driver = AdmissionDriver(nats_server.url, nats_prefix, ManualClock(datetime(2026, 1, 1, tzinfo=UTC)))
    yield driver
    driver.close()


def pass_time(driver: AdmissionDriver, seconds: float) -> None:
    """Let the server's time pass: the engine counts from its earliest bound, which lags behind by the drift."""
    assert isinstance(driver.clock, ManualClock)
    driver.clock.jump(seconds * (1 + 2 / DRIFT))


# -- sequences


def test_jobs_of_a_sequence_pass_one_at_a_time_and_in_order(driver: AdmissionDriver) -> None:
    driver.submit("a", "b", "c", sequence="key")
    driver.submit("other", sequence="another")
    for job_id in "abc":
        assert [ready for ready in driver.ready() if ready != "other"] == [job_id]
        assert driver.start(job_id)
        assert driver.ready() == ["other"]
        driver.end(job_id)
    assert driver.limiter(KEY) is None


def test_one_whose_turn_is_earlier_goes_before_a_head_that_has_not_started(driver: AdmissionDriver) -> None:
    for job_id, age in (("third", 10), ("first", 30), ("second", 20), ("fourth", 10)):
        driver.submit(job_id, sequence="key", limits=ALL, after=-age)
    for job_id in ("first", "second", "third", "fourth"):
        assert driver.ready() == [job_id]
        driver.run(job_id)
    assert driver.limiter(*ALL) is None


def test_one_whose_turn_is_earlier_waits_for_a_head_that_has_started(driver: AdmissionDriver) -> None:
    driver.submit("b", "c", sequence="key", after=-1)
    assert driver.start("b")
    driver.submit("a", sequence="key", after=-2)
    assert driver.ready() == []
    driver.end("b")
    assert driver.ready() == ["a"]


def test_a_retry_holds_its_sequence_until_it_is_due(driver: AdmissionDriver) -> None:
    driver.submit("a", "b", sequence="key", limits=ALL)
    assert driver.start("a")
    driver.retry("a", after=5)
    assert (driver.ready(), driver.state("a")) == ([], "held")
    pass_time(driver, 5)
    driver.enter("a")
    assert driver.ready() == ["a"]
    driver.run("a")
    assert driver.ready() == ["b"]


def test_a_retry_gives_way_to_one_that_came_meanwhile_with_an_earlier_turn(driver: AdmissionDriver) -> None:
    driver.submit("b", "c", sequence="key", after=-1)
    assert driver.start("b")
    driver.submit("a", sequence="key", after=-2)
    driver.retry("b", after=5)
    assert driver.ready() == ["a"]
    driver.run("a")
    # The turn of b is before that of c, though b is not due.
    assert (driver.ready(), driver.state("b")) == ([], "held")
    pass_time(driver, 5)
    driver.enter("b")
    driver.run("b")
    assert driver.ready() == ["c"]


def test_a_retry_that_steps_aside_lets_the_others_go_first(driver: AdmissionDriver) -> None:
    driver.submit("a", "b", sequence="key")
    assert driver.start("a")
    pass_time(driver, 1)
    driver.retry("a", keeps_sequence=False)
    assert driver.ready() == ["b"]
    driver.run("b")
    assert driver.ready() == ["a"]


def test_a_job_that_is_called_off_is_passed_over_and_lets_the_next_one_go(driver: AdmissionDriver) -> None:
    driver.submit("a", "b", "c", "d", sequence="key")
    driver.cancel("b")
    assert driver.ready() == ["a"]
    driver.cancel("a")
    assert driver.ready() == ["c"]
    driver.run("c")
    driver.run("d")
    assert driver.limiter(KEY) is None


def test_a_head_that_waits_for_its_limit_holds_up_those_behind(driver: AdmissionDriver) -> None:
    driver.limit("all", 1)
    driver.submit("busy", limits=ALL)
    driver.submit("a", sequence="key", limits=ALL)
    driver.submit("b", sequence="key")
    assert driver.start("busy")
    assert driver.ready() == []
    driver.end("busy")
    assert driver.ready() == ["a"]
    driver.run("a")
    assert driver.ready() == ["b"]


def test_the_order_of_a_long_line_is_that_of_turns(driver: AdmissionDriver) -> None:
    driver.submit("head", sequence="key", after=-100)
    ages = [(7 * number) % 40 for number in range(40)]
    for age in ages:
        driver.submit(f"{age:02}", sequence="key", after=age - 50)
    assert driver.start("head")
    driver.end("head")
    order = []
    for _ in ages:
        (job_id,) = driver.ready()
        order.append(job_id)
        driver.run(job_id)
    assert order == sorted(order)


def test_who_is_in_the_way_is_told(driver: AdmissionDriver) -> None:
    driver.submit("a", "b", "c", sequence="key")
    for is_started in (False, True):
        if is_started:
            assert driver.start("a")
        behind = {
            job_id: driver.admission.blocking_job(driver.transactions.begin(), driver.job(job_id))
            for job_id in "abc"
        }
        assert behind == {"a": None, "b": "a", "c": "a"}


# -- limits


def test_no_more_pass_than_the_limit_says_and_each_end_lets_one_pass(driver: AdmissionDriver) -> None:
    driver.limit("all", 2)
    driver.submit(*"abcde", limits=ALL)
    assert driver.ready() == ["a", "b"]
    driver.run("a")
    assert driver.ready() == ["b", "c"]
    driver.run("b")
    driver.run("c")
    assert driver.ready() == ["d", "e"]


def test_lines_of_different_keys_take_turns_before_a_gate_that_they_share(driver: AdmissionDriver) -> None:
    driver.limit("all", 1)
    driver.limit("by tenant", 9)
    driver.submit("a0", "a1", "a2", limits=ALL + A)
    driver.submit("b0", "b1", limits=ALL + B)
    order = []
    for _ in range(5):
        (job_id,) = driver.ready()
        order.append(job_id)
        driver.run(job_id)
    assert order == ["a0", "a1", "b0", "a2", "b1"]


def test_a_full_bucket_holds_up_no_other(driver: AdmissionDriver) -> None:
    driver.limit("all", 2)
    driver.limit("by tenant", 1)
    driver.submit("a0", "a1", "a2", limits=ALL + A)
    driver.submit("b0", limits=ALL + B)
    driver.submit("plain", limits=(bucket_of("unknown", "x"),))
    assert driver.ready() == ["a0", "b0", "plain"]


def test_a_job_that_waits_in_one_line_may_have_to_wait_in_another_one_next(driver: AdmissionDriver) -> None:
    driver.limit("all", 1)
    driver.limit("by tenant", 1)
    driver.submit("x", limits=ALL)
    driver.submit("a0", "a1", limits=ALL + A)
    driver.submit("a only", limits=A)
    assert driver.ready() == ["x", "a only"]  # a0 waits for all, and holds nothing of its tenant meanwhile
    assert driver.start("x")
    driver.end("x")
    assert driver.ready() == ["a only"]  # now a0 waits for its tenant
    driver.run("a only")
    assert driver.ready() == ["a0"]
    driver.run("a0")
    driver.run("a1")
    assert [driver.limiter(name) for name in ALL + A] == [None, None]


def test_a_limit_that_is_defined_later_counts_those_that_are_inside(driver: AdmissionDriver) -> None:
    driver.submit("a", limits=ALL)
    assert driver.start("a")
    driver.limit("all", 1)
    driver.submit("b", limits=ALL)
    assert driver.ready() == []
    driver.end("a")
    assert driver.ready() == ["b"]


def test_a_raised_and_a_dropped_limit_let_jobs_pass_at_once(driver: AdmissionDriver) -> None:
    driver.limit("all", 1)
    driver.submit(*"abcdefgh", limits=ALL)
    assert driver.limit("all", 3)
    assert driver.ready() == ["a", "b", "c"]
    assert driver.drop_limit("all")
    assert driver.ready() == list("abcdefgh")


def test_more_than_a_draft_may_hold_pass_one_part_after_another(driver: AdmissionDriver) -> None:
    driver.limit("all", 1)
    numbers = [f"{number:03}" for number in range(130)]
    driver.submit(*numbers, limits=ALL)
    driver.drop_limit("all")
    assert len(driver.ready()) == 51
    for passed in (101, 130):
        assert driver.has_wakeup(*ALL)
        driver.wake(*ALL)
        assert len(driver.ready()) == passed
    assert driver.ready() == numbers


def test_a_limit_of_another_process_holds_at_once(driver: AdmissionDriver, nats_server: Servers) -> None:
    other = AdmissionDriver(nats_server.url, driver.names.prefix, driver.clock)
    try:
        other.submit("a", limits=ALL)
        driver.limit("all", 1)
        other.submit("b", limits=ALL)
        assert driver.ready() == ["a"]
    finally:
        other.close()


def test_the_limit_that_is_in_the_way_is_told_with_some_of_those_inside(driver: AdmissionDriver) -> None:
    driver.limit("all", 2)
    driver.submit("a", "b", "c", limits=ALL)
    refusal, holders = driver.admission.refusal_of(driver.transactions.begin(), driver.job("c"))
    assert refusal is not None
    assert (refusal.bucket, refusal.until, holders) == (*ALL, None, ("a", "b"))
    assert driver.admission.refusal_of(driver.transactions.begin(), driver.job("a")) == (None, ())


def test_beyond_some_hundred_keys_lines_are_shared(
    driver: AdmissionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiters, "MAX_GROUPS", 4)
    monkeypatch.setattr(limiters, "SHARED_LINES", 2)
    driver.limit("all", 1)
    names = [f"{number}" for number in range(12)]
    for name in names:
        driver.submit(name, limits=(*ALL, bucket_of("by tenant", name)))
    limiter = driver.limiter(*ALL)
    assert limiter is not None
    assert len(limiter.groups) <= 6
    passed = []
    for _ in names:
        (job_id,) = driver.ready()
        passed.append(job_id)
        driver.run(job_id)
    assert sorted(passed) == sorted(names)
    assert driver.limiter(*ALL) is None


# -- rates


def test_a_rate_admits_jobs_for_its_tokens_and_a_reminder_comes_when_it_has_more(
    driver: AdmissionDriver,
) -> None:
    driver.limit("all", 2, per=10)
    driver.submit(*"abcd", limits=ALL)
    assert driver.ready() == ["a", "b"]
    driver.run("a")
    driver.run("b")
    assert driver.has_wakeup(*ALL)
    for job_id in "cd":
        pass_time(driver, 4.99)
        driver.wake(*ALL)
        assert driver.ready() == []
        pass_time(driver, 0.01)
        driver.wake(*ALL)
        assert driver.ready() == [job_id]
        driver.run(job_id)


def test_a_token_is_used_up_by_the_start_however_long_a_job_was_ready(driver: AdmissionDriver) -> None:
    driver.limit("all", 2, per=10)
    driver.submit(*"abcd", limits=ALL)
    pass_time(driver, 3600)
    driver.wake(*ALL)
    assert driver.ready() == ["a", "b"]  # else four would start at once
    driver.run("a")
    driver.run("b")
    assert driver.ready() == []
    pass_time(driver, 5)
    driver.wake(*ALL)
    assert driver.ready() == ["c"]


def test_a_start_that_was_not_used_is_given_back(driver: AdmissionDriver) -> None:
    driver.limit("all", 1, per=3600)
    driver.submit("a", "b", limits=ALL)
    driver.cancel("a")
    assert driver.ready() == ["b"]
    driver.run("b")
    driver.submit("c", limits=ALL)
    assert driver.ready() == []


def test_a_raised_rate_does_not_wait_for_the_old_one(driver: AdmissionDriver) -> None:
    driver.limit("all", 1, per=3600)
    driver.submit("a", "b", limits=ALL)
    driver.run("a")
    driver.limit("all", 1, per=1)
    assert driver.ready() == []
    pass_time(driver, 1)
    driver.wake(*ALL)
    assert driver.ready() == ["b"]


def test_the_job_that_waited_longest_gets_a_token_that_was_not_handed_out(driver: AdmissionDriver) -> None:
    driver.limit("all", 1, per=10)
    driver.submit("a", limits=ALL)
    driver.submit("b", limits=ALL + A)
    driver.run("a")
    pass_time(driver, 10)
    driver.submit("c", limits=ALL + B)
    assert driver.ready() == ["b"]


def test_an_unused_rate_is_forgotten_when_it_is_full(driver: AdmissionDriver) -> None:
    driver.limit("all", 1, per=10)
    driver.submit("a", limits=ALL)
    driver.run("a")
    limiter = driver.limiter(*ALL)
    assert limiter is not None  # for its token is not back yet
    pass_time(driver, 10)
    driver.submit("b", limits=ALL)
    assert driver.ready() == ["b"]


# -- turns


def test_a_tenant_with_many_jobs_leaves_room_in_the_lane_for_others(driver: AdmissionDriver) -> None:
    driver.limit("by tenant", 100)
    driver.submit(*(f"a{number}" for number in range(50)), limits=A)
    driver.submit("b0", "b1", limits=B)
    order = []
    for _ in range(8):
        job_id = driver.ready()[0]
        order.append(job_id)
        assert driver.start(job_id)
    assert order == ["a0", "a1", "a2", "a3", "b0", "b1", "a4", "a5"]


def test_all_jobs_of_a_tenant_can_run_at_once_if_no_other_tenant_is_there(driver: AdmissionDriver) -> None:
    driver.limit("by tenant", 100)
    driver.submit(*(f"{number:02}" for number in range(20)), limits=A)
    for number in range(20):
        assert driver.ready()[0] == f"{number:02}"
        assert driver.start(f"{number:02}")
    limiter = driver.limiter(*A)
    assert limiter is not None
    assert limiter.admitted == 20


# -- queues


def test_a_paused_queue_occupies_no_limit(driver: AdmissionDriver) -> None:
    driver.limit("all", 1)
    driver.submit("a", queue="paused", limits=ALL)
    driver.submit("b", queue="open", limits=ALL)
    assert driver.ready() == ["a"]
    # A message that the server has published on schedule is empty.
    fired = driver.names.ready_of("paused", "ping", 1, "plain")
    driver.transactions.run(lambda transaction: transaction.batch.put(fired, b""))
    driver.pause("paused")
    driver.jetstream.api(f"STREAM.PURGE.{driver.names.stream}", {"filter": fired})
    driver.submit("c", queue="paused", limits=ALL)
    assert driver.ready() == ["b"]
    driver.run("b")
    assert driver.ready() == []
    driver.pause("paused", is_paused=False)
    assert driver.ready() == ["a"]
    driver.run("a")
    driver.run("c")
    assert (driver.limiter(queue_limiter("paused")), driver.limiter(*ALL)) == (None, None)


def test_a_job_of_a_paused_queue_that_got_its_place_from_another_gives_it_up(driver: AdmissionDriver) -> None:
    driver.limit("all", 1)
    driver.submit("a", "b", limits=ALL, queue="paused")
    driver.submit("c", limits=ALL)
    driver.run("a")
    assert driver.ready() == ["b"]
    driver.pause("paused")
    assert driver.ready() == ["c"]
    driver.pause("paused", is_paused=False)
    driver.run("c")
    assert driver.ready() == ["b"]


# -- what may go wrong


def test_a_message_in_a_line_that_should_be_gone_lets_no_job_pass_twice(driver: AdmissionDriver) -> None:
    driver.submit("a", "b", "c", sequence="key")
    lost = driver.names.waiting_job(KEY, "", "b")
    message = driver.jetstream.read_one(lost).data
    driver.run("a")
    driver.run("b")
    driver.transactions.run(lambda transaction: transaction.batch.put(lost, message))  # its purge was lost
    driver.submit("d", sequence="key")
    driver.run("c")
    assert driver.ready() == ["d"]
    driver.run("d")
    assert driver.job("b").status is JobStatus.COMPLETED
    assert driver.limiter(KEY) is None


def test_stale_messages_of_whole_pages_are_read_over(driver: AdmissionDriver) -> None:
    driver.submit("a", *(f"stale {number}" for number in range(20)), sequence="key")
    messages = driver.scan(driver.names.line(KEY, ""))
    for number in range(20):
        driver.cancel(f"stale {number}")
    driver.transactions.run(lambda transaction: [transaction.batch.put(at, entry.data) for at, entry in messages])
    driver.submit("b", sequence="key")
    driver.run("a")
    assert driver.ready() == ["b"]


def test_those_that_a_lagging_server_does_not_show_yet_are_looked_for_again(driver: AdmissionDriver) -> None:
    driver.submit("a", "b", sequence="key")
    driver.empty_fronts(KEY)
    subject = driver.names.waiting_job(KEY, "", "b")
    message = driver.jetstream.read_one(subject).data
    driver.jetstream.api(f"STREAM.PURGE.{driver.names.stream}", {"filter": subject})
    driver.run("a")
    assert (driver.ready(), driver.has_wakeup(KEY)) == ([], True)
    driver.transactions.run(lambda transaction: transaction.batch.put(subject, message))
    driver.wake(KEY)
    assert driver.ready() == ["b"]


def test_a_job_that_enters_twice_counts_once(driver: AdmissionDriver) -> None:
    driver.limit("all", 1)
    driver.submit("a", "b", limits=ALL)
    for job_id in "abab":
        driver.enter(job_id)
    driver.run("a")
    driver.run("b")
    assert driver.limiter(*ALL) is None


def test_what_leaves_and_comes_back_in_one_step_is_in_line_again(driver: AdmissionDriver) -> None:
    driver.limit("all", 1)
    driver.submit("a", "b", limits=ALL)
    assert driver.start("a")
    driver.retry("a")
    assert driver.ready() == ["b"]
    driver.run("b")
    assert driver.ready() == ["a"]


def test_names_of_any_kind_keep_apart(driver: AdmissionDriver) -> None:
    driver.limit("sequence", 1)
    odd = ["", " ", "a.b", "*", ">", "ä" * 300, "\x1f", "all\x1f", "x" * 2_000]
    for name in odd:
        driver.submit(f"s{name}", sequence=name)
        driver.submit(f"l{name}", limits=(bucket_of("sequence", f"k{name}"),))
    assert len(driver.ready()) == 2 * len(odd)


# -- settings


def test_settings_are_the_same_for_all_processes(driver: AdmissionDriver, nats_server: Servers) -> None:
    other = AdmissionDriver(nats_server.url, driver.names.prefix, driver.clock)
    try:
        limit = PutLimit("all", 2, MICROSECONDS, ("tenant",))
        assert [driver.settings_cache.change(limit), driver.settings_cache.change(limit)] == [True, False]
        assert [driver.settings_cache.change(PauseQueue("q", paused)) for paused in (False, True, True)] == [
            False,
            True,
            False,
        ]
        assert other.settings_cache.refresh_if_needed()
        assert not other.settings_cache.refresh_if_needed()
        assert (other.settings_cache.limits, other.settings_cache.list_limits()) == (
            {"all": Limit(2, MICROSECONDS)},
            [limit],
        )
        assert other.settings_cache.paused == {"q"}
        assert other.settings_cache.change(PauseQueue("q", False))
        driver.settings_cache.refresh()
        assert driver.settings_cache.paused == frozenset()
    finally:
        other.close()


def test_a_note_tells_others_that_settings_have_changed(driver: AdmissionDriver, nats_server: Servers) -> None:
    heard = Event()
    driver.jetstream.subscribe(f"{driver.names.notifications}settings", lambda _subject, _data: heard.set())
    driver.settings_cache.change(PauseQueue("q", True))
    assert heard.wait(PATIENCE)


# -- the fronts of lines


def front_of(driver: AdmissionDriver) -> list[str]:
    limiter = driver.limiter(KEY)
    assert limiter is not None
    return [waiter.job_id for waiter in limiter.groups[0].front]


@pytest.fixture
def front_of_three(driver: AdmissionDriver, monkeypatch: pytest.MonkeyPatch) -> AdmissionDriver:
    monkeypatch.setattr(waiting_lines, "FRONT", 3)
    driver.submit("first", *(f"job {number}" for number in range(5)), sequence="key", after=-10)
    return driver


def test_the_record_of_a_limiter_has_the_first_jobs_of_a_line(front_of_three: AdmissionDriver) -> None:
    driver = front_of_three
    assert front_of(driver) == ["job 0", "job 1", "job 2"]
    driver.submit("early", sequence="key", after=-20)
    assert driver.ready() == ["early"], "it takes the place of the first, which has not started"
    assert front_of(driver) == ["first", "job 0", "job 1"]
    driver.cancel("job 0")
    assert front_of(driver) == ["first", "job 1"]
    for job_id in ("early", "first", "job 1"):
        driver.run(job_id)
    assert driver.ready() == ["job 2"]
    assert front_of(driver) == ["job 3", "job 4"], "they were read from the messages"
    driver.run("job 2")
    driver.run("job 3")
    driver.run("job 4")
    assert driver.limiter(KEY) is None


def test_the_lines_of_a_limiter_share_the_room_for_fronts(driver: AdmissionDriver) -> None:
    driver.limit("all", 1)
    for tenant in "abcd":
        names = [f"{tenant} {number}" for number in range(3)]
        driver.submit(*names, limits=(*ALL, bucket_of("by tenant", tenant)))
    limiter = driver.limiter(*ALL)
    assert limiter is not None
    room = waiting_lines.FRONT
    expected = [min(2, room), *(min(3, max(1, room // lines)) for lines in (2, 3, 4))]
    assert [len(group.front) for group in limiter.groups] == expected
    started = []
    for _ in range(12):
        (job_id,) = driver.ready()
        driver.run(job_id)
        started.append(job_id)
    assert [job_id[0] for job_id in started[1:9]] == [*"abcdabcd"]
    assert [job_id for job_id in started if job_id[0] == "d"] == ["d 0", "d 1", "d 2"]


def test_a_large_record_is_stored_without_fronts(driver: AdmissionDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiters, "MAX_RECORD", 10)
    driver.submit("a", "b", "c", sequence="key")
    assert front_of(driver) == []
    for job_id in "abc":
        assert driver.ready() == [job_id]
        driver.run(job_id)


def test_one_that_joins_behind_an_empty_front_waits_for_its_turn(front_of_three: AdmissionDriver) -> None:
    driver = front_of_three
    driver.empty_fronts(KEY)
    driver.submit("last", sequence="key")
    assert front_of(driver) == []
    for job_id in ("first", *(f"job {number}" for number in range(5)), "last"):
        assert driver.ready() == [job_id]
        driver.run(job_id)
