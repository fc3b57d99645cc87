"""Conformance tests of engines: requests with an `Idempotency-Key`."""

from __future__ import annotations

from threading import Barrier, Thread

from mainspring.jobs.engine import Capability
from mainspring.jobs.request_records import NewRequest, RequestEnd, RequestRecord
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench, seconds
from mainspring.testing.conformance.capabilities import needs


def new_request(
    key: str,
    *,
    owner: str = "first",
    caller: str = "shop",
    digest: str = "d1",
    kept: float = 3_600,
    busy: float = 60,
    most: int = 100,
) -> NewRequest:
    """Return a request with this idempotency key that is about to begin."""
    return NewRequest(
        caller=caller,
        key=key,
        digest=digest,
        first_id=f"id of {owner}",
        owner=owner,
        kept=seconds(kept),
        busy=seconds(busy),
        most=most,
    )


def begin(bench: Bench, request: NewRequest) -> RequestRecord | None:
    """Let the engine begin one request; return the stored record of its key, or None if there are too many keys.

    The record is that of an earlier request if one has the same key.
    """
    (record,) = bench.engine.begin_requests([request])
    return record


def end(bench: Bench, key: str, answer: bytes | None, *, owner: str = "first", caller: str = "shop") -> bool:
    """Let the engine store the answer of the request with this key; return whether it was stored."""
    (is_stored,) = bench.engine.end_requests([RequestEnd(caller=caller, key=key, owner=owner, answer=answer)])
    return is_stored


class RequestTests(EngineSuite):
    """Tests of the engine's `begin_requests` and `end_requests`."""

    def test_a_new_key_belongs_to_the_request_that_brings_it(self, bench: Bench) -> None:
        record = begin(bench, new_request("a"))
        assert record is not None
        assert (record.caller, record.key, record.digest, record.first_id) == ("shop", "a", "d1", "id of first")
        assert (record.owner, record.answer) == ("first", None)
        assert record.busy_until - record.created == seconds(60)
        assert record.expires - record.created == seconds(3_600)

    def test_a_second_request_finds_the_first_one_while_it_is_carried_out(
        self, bench: Bench, other: Bench
    ) -> None:
        first = begin(bench, new_request("a"))
        assert begin(other, new_request("a", owner="second")) == first

    def test_a_stored_answer_is_found_by_every_process_and_never_replaced(
        self, bench: Bench, other: Bench
    ) -> None:
        assert begin(bench, new_request("a"))
        assert end(bench, "a", b"\x00\xffanswer")
        for number in range(3):
            record = begin(other, new_request("a", owner=f"later {number}"))
            assert record is not None
            assert (record.answer, record.owner, record.first_id) == (b"\x00\xffanswer", "first", "id of first")
        assert not end(other, "a", b"other", owner="second")
        record = begin(bench, new_request("a", owner="last"))
        assert record is not None
        assert record.answer == b"\x00\xffanswer"

    def test_a_request_without_an_answer_is_carried_out_again_with_the_same_ids(
        self, bench: Bench, other: Bench
    ) -> None:
        assert begin(bench, new_request("a"))
        assert end(bench, "a", None)
        record = begin(other, new_request("a", owner="second"))
        assert record is not None
        assert (record.owner, record.first_id, record.answer) == ("second", "id of first", None)
        assert not end(bench, "a", b"too late", owner="first")
        assert end(other, "a", b"answer", owner="second")

    def test_a_request_whose_server_died_is_taken_over_after_a_while(self, bench: Bench, other: Bench) -> None:
        assert begin(bench, new_request("a", busy=0.5))
        bench.pass_time(0.6)
        record = begin(other, new_request("a", owner="second"))
        assert record is not None
        assert (record.owner, record.first_id) == ("second", "id of first")
        third = begin(bench, new_request("a", owner="third"))
        assert third is not None
        assert third.owner == "second"

    def test_another_body_changes_nothing_even_after_the_first_server_died(self, bench: Bench) -> None:
        first = begin(bench, new_request("a", busy=0.5))
        assert begin(bench, new_request("a", owner="second", digest="d2")) == first
        bench.pass_time(0.6)
        assert begin(bench, new_request("a", owner="second", digest="d2")) == first

    def test_callers_do_not_share_keys(self, bench: Bench) -> None:
        assert begin(bench, new_request("a", caller="shop"))
        assert end(bench, "a", b"of shop", caller="shop")
        record = begin(bench, new_request("a", caller="mail", owner="second"))
        assert record is not None
        assert (record.caller, record.owner, record.answer) == ("mail", "second", None)
        assert not end(bench, "a", b"forged", caller="shop", owner="second")

    def test_keys_and_callers_are_any_text(self, bench: Bench) -> None:
        names = ["a.b", "a b", "*", ">", "ä", "x" * 255, "'; --", ""]
        for caller in names:
            for key in names:
                record = begin(bench, new_request(key, caller=caller, owner=f"{caller}/{key}"))
                assert record is not None
                assert (record.caller, record.key, record.owner) == (caller, key, f"{caller}/{key}")

    def test_an_expired_key_is_new(self, bench: Bench) -> None:
        assert begin(bench, new_request("a", kept=1))
        assert end(bench, "a", b"old")
        bench.pass_time(1.1)
        record = begin(bench, new_request("a", owner="second", digest="d2"))
        assert record is not None
        assert (record.owner, record.first_id, record.digest) == ("second", "id of second", "d2")
        assert record.answer is None
        assert not end(bench, "a", b"too late", owner="first")

    def test_an_end_without_a_beginning_stores_nothing(self, bench: Bench) -> None:
        assert not end(bench, "a", b"answer")
        record = begin(bench, new_request("a"))
        assert record is not None
        assert record.answer is None

    def test_a_batch_has_an_answer_for_each_request_also_of_the_same_key(self, bench: Bench) -> None:
        requests = [new_request(key, owner=f"owner {n}") for n, key in enumerate("abacab")]
        records = bench.engine.begin_requests(requests)
        assert [record and record.owner for record in records] == [
            "owner 0",
            "owner 1",
            "owner 0",
            "owner 3",
            "owner 0",
            "owner 1",
        ]
        ends = [
            RequestEnd(caller="shop", key=key, owner=f"owner {n}", answer=b"x") for n, key in enumerate("abac")
        ]
        assert bench.engine.end_requests(ends) == [True, True, False, True]
        many = bench.engine.begin_requests([new_request("d", owner=f"owner {n}") for n in range(200)])
        assert [record and record.owner for record in many] == ["owner 0"] * 200
        assert bench.engine.begin_requests([]) == []
        assert bench.engine.end_requests([]) == []

    def test_a_caller_with_too_many_keys_gets_no_more_and_others_do(self, bench: Bench) -> None:
        for number in range(3):
            assert begin(bench, new_request(f"key {number}", most=3))
        assert begin(bench, new_request("key 3", most=3)) is None
        assert begin(bench, new_request("key 3", most=3, caller="mail")) is not None
        known = begin(bench, new_request("key 2", most=3, owner="second"))  # a repetition needs no room
        assert known is not None
        assert known.owner == "first"

    @needs(Capability.VIRTUAL_TIME)
    def test_expired_keys_make_room(self, bench: Bench) -> None:
        for number in range(3):
            assert begin(bench, new_request(f"key {number}", most=3, kept=10))
        bench.pass_time(11)
        assert begin(bench, new_request("key 3", most=3))

    def test_a_large_answer_is_kept(self, bench: Bench) -> None:
        answer = bytes(range(256)) * 1_024
        assert begin(bench, new_request("a"))
        assert end(bench, "a", answer)
        record = begin(bench, new_request("a", owner="second"))
        assert record is not None
        assert record.answer == answer

    @needs(Capability.SHARED)
    def test_of_requests_at_the_same_time_one_is_carried_out(self, bench: Bench, other: Bench) -> None:
        found: dict[str, str] = {}
        barrier = Barrier(2)

        def use(own: Bench, name: str) -> None:
            barrier.wait()
            for number in range(20):
                record = begin(own, new_request(f"key {number}", owner=f"{name} {number}"))
                assert record is not None
                found[f"{name} {number}"] = record.owner

        threads = [Thread(target=use, args=args) for args in ((bench, "one"), (other, "two"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 40
        for number in range(20):
            assert found[f"one {number}"] == found[f"two {number}"]

    def test_no_worker_is_woken_for_a_request(self, bench: Bench) -> None:
        before = bench.wakes
        assert begin(bench, new_request("a"))
        assert end(bench, "a", b"answer")
        assert bench.wakes == before
