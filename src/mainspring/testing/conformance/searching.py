"""Conformance tests of engines: jobs are found by the search keys with which they were submitted.

`Query.search` lets an engine with an index leave out jobs that cannot match. These tests look at the jobs that
remain after the comparison of arguments, so an engine without an index passes them, too.
"""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.jobs.commands import CancelJob, Delete, Edit, Reopen, Replay
from mainspring.jobs.records import FollowUp, OutcomeKind, Query, UniqueKey
from mainspring.jobs.search import JobFilter, search
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench

HOUR = 3_600


def order(number: int | str) -> dict[str, Any]:
    """Return the encoded argument `order_id` and its search key, as options of a new job."""
    value = f'"{number}"' if isinstance(number, str) else f"{number}"
    return {"payload": f'{{"order_id":{value}}}'.encode(), "search": (f"order_id={value}",)}


def found(bench: Bench, arguments: dict[str, Any], **options: Any) -> list[str]:
    """Return the ids of all jobs that a search by these arguments finds, page by page."""
    ids: list[str] = []
    query = Query(**{"limit": 2} | options)
    while True:
        page = search(bench.engine.find, query, JobFilter(arguments, None))
        ids += [job.id for job in page]
        if page.next is None:
            return ids
        query = Query(**{"limit": 2} | options, after=page.next)


class SearchTests(EngineSuite):
    """Tests of `Query.search`, and of the search keys of jobs through submits and commands."""

    def test_jobs_are_found_by_a_key_among_others(self, bench: Bench) -> None:
        for number in range(12):
            bench.submit(f"{number}", after=HOUR, **order(number % 3))
        assert found(bench, {"order_id": 1}) == ["1", "4", "7", "10"]
        assert found(bench, {"order_id": 1}, newest_first=True) == ["10", "7", "4", "1"]
        assert found(bench, {"order_id": 7}) == found(bench, {"order_id": "1"}) == []

    def test_jobs_without_keys_are_found_among_those_with_keys(self, bench: Bench) -> None:
        for number in range(12):
            options = order(number % 2)
            if number % 3 == 0:  # submitted before the parameter was indexed
                options["search"] = ()
            bench.submit(f"{number}", after=HOUR, **options)
        bench.submit("other type", type="pong", after=HOUR, **order(1))
        bench.submit("other argument", after=HOUR, payload=b'{"order":1}')
        expected = ["1", "3", "5", "7", "9", "11", "other type"]
        assert found(bench, {"order_id": 1}) == expected
        assert found(bench, {"order_id": 1}, newest_first=True) == expected[::-1]
        assert found(bench, {"order_id": 1}, type="ping") == expected[:-1]

    def test_several_arguments_must_all_match(self, bench: Bench) -> None:
        for number in range(8):
            payload = f'{{"order_id":{number // 2},"customer":"{"ab"[number % 2]}"}}'.encode()
            keys = (f"order_id={number // 2}", f'customer="{"ab"[number % 2]}"')
            indexed = ((), keys[:1], keys[1:], keys)[number // 2 % 4]
            bench.submit(f"{number}", after=HOUR, payload=payload, search=indexed)
        for number in range(8):
            arguments = {"order_id": number // 2, "customer": "ab"[number % 2]}
            assert found(bench, arguments) == [f"{number}"]
            assert found(bench, dict(reversed(arguments.items()))) == [f"{number}"]
        assert found(bench, {"customer": "b"}) == ["1", "3", "5", "7"]

    def test_a_parameter_that_was_not_given_matches_no_value(self, bench: Bench) -> None:
        bench.submit("none", after=HOUR, search=("order_id",))
        bench.submit("one", after=HOUR, **order(1))
        assert found(bench, {"order_id": 1}) == ["one"]
        assert found(bench, {"order_id": None}) == []
        assert bench.find_ids() == ["none", "one"]

    def test_a_search_is_filtered_as_a_list_is(self, bench: Bench) -> None:
        for job_id, queue in (("a", "one"), ("b", "two"), ("c", "one"), ("d", "two")):
            bench.submit(job_id, queue=queue, after=HOUR, **order(1))
            bench.pass_time(0.01)
        bench.cancel("c")
        assert found(bench, {"order_id": 1}, queue="one") == ["a", "c"]
        assert found(bench, {"order_id": 1}, status=JobStatus.PENDING) == ["a", "b", "d"]
        assert found(bench, {"order_id": 1}, status=JobStatus.CANCELED, queue="two") == []
        assert found(bench, {"order_id": 1}, type="pong") == []
        created = bench.record("b").created
        assert found(bench, {"order_id": 1}, created_since=created, newest_first=True) == ["d", "c", "b"]
        assert found(bench, {"order_id": 1}, created_until=created) == ["a"]

    @pytest.mark.parametrize("count", [1, 3, 100])
    def test_jobs_of_one_submit_have_keys_of_their_own(self, bench: Bench, count: int) -> None:
        jobs = [bench.job(f"{number}", after=HOUR, **order(number % 2)) for number in range(count)]
        assert bench.engine.submit(jobs) == [None] * count
        assert found(bench, {"order_id": 0}) == [f"{number}" for number in range(0, count, 2)]

    def test_a_job_that_was_not_stored_leaves_no_keys(self, bench: Bench) -> None:
        bench.submit("a", after=HOUR, **order(1))
        jobs = [bench.job("a", after=HOUR, **order(2)), bench.job("b", after=HOUR, **order(2))]
        jobs.append(bench.job("b", after=HOUR, **order(3)))
        assert [conflict is None for conflict in bench.engine.submit(jobs)] == [False, True, False]
        assert found(bench, {"order_id": 1}) == ["a"]
        assert found(bench, {"order_id": 2}) == ["b"]
        assert found(bench, {"order_id": 3}) == []
        jobs = [bench.job("c", after=HOUR, payload=b'{"order_id":4}'), bench.job("c", after=HOUR, **order(5))]
        assert [conflict is None for conflict in bench.engine.submit(jobs)] == [True, False]
        assert found(bench, {"order_id": 4}) == ["c"]
        assert found(bench, {"order_id": 5}) == []

    def test_a_job_that_is_replaced_has_the_keys_of_its_successor(self, bench: Bench) -> None:
        unique = UniqueKey("key", (JobStatus.PENDING,), replaces=True)
        bench.submit("a", after=HOUR, unique=unique, **order(1))
        for options, number in ((order(2), 2), ({"payload": b'{"order_id":3}'}, 3), (order(4), 4)):
            bench.engine.submit([bench.job("b", after=HOUR, unique=unique, **options)])
            assert found(bench, {"order_id": number}) == ["a"]
            assert found(bench, {"order_id": number - 1}) == []

    def test_a_job_with_keys_is_claimed_and_settled_as_any_other(self, bench: Bench) -> None:
        bench.submit("a", **order(1))
        worker, lease = bench.take_by_new_worker()
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now)
        (lease,) = bench.take_when_there(worker, 1)
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
        assert found(bench, {"order_id": 1}, status=JobStatus.COMPLETED) == ["a"]

    def test_keys_sequences_and_limits_go_together(self, bench: Bench) -> None:
        bench.limit("family", 1)
        options = {"limits": ("family",), "sequence": "s"}
        bench.submit("a", **options, **order(1))
        bench.submit("b", **options)
        bench.submit("c", limits=("family",), **order(1))
        worker = bench.enroll()
        attempts: list[str] = []
        while bench.engine.counts()[JobStatus.COMPLETED] < 3:
            (lease,) = bench.take_when_there(worker, 1)
            if lease.id in attempts:
                assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
            else:
                assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now)
            attempts.append(lease.id)
        assert sorted(attempts) == ["a", "a", "b", "b", "c", "c"]
        assert found(bench, {"order_id": 1}) == ["a", "c"]

    def test_a_follow_up_job_is_found_by_its_keys(self, bench: Bench) -> None:
        bench.submit("first", follow_up=FollowUp("pong", "default", 1))
        worker, lease = bench.take_by_new_worker()
        second = bench.job("second", type="pong", **order(1))
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED, follow_up=second)
        assert found(bench, {"order_id": 1}) == ["second"]

    # -- commands

    @pytest.mark.parametrize("limits", [(), ("family",)])
    def test_an_edit_changes_the_keys(self, bench: Bench, limits: tuple[str, ...]) -> None:
        bench.limit("family", 1)
        bench.bury("a", limits=limits, **order(1))
        edits: list[tuple[str, ...]] = [("order_id=2",), (), ('customer="x"', "order_id=4"), ("order_id=5",)]
        for number, keys in enumerate(edits, start=2):
            payload = f'{{"order_id":{number},"customer":"x"}}'.encode()
            assert bench.change(Edit("a", payload, "json", keys)).is_done
            assert found(bench, {"order_id": number}) == found(bench, {"customer": "x"}) == ["a"]
            assert found(bench, {"order_id": number - 1}) == []
        assert bench.change(Reopen("a", bench.now)).is_done
        _, lease = bench.take_by_new_worker()
        assert (lease.id, lease.limits) == ("a", limits)

    @pytest.mark.parametrize("limits", [(), ("family",)])
    def test_a_replay_has_the_keys_of_its_arguments(self, bench: Bench, limits: tuple[str, ...]) -> None:
        bench.limit("family", 5)
        for letter in "abc":
            bench.bury(letter, limits=limits, **order(1))
        assert bench.change(Replay("a", "same", bench.now)).is_done
        changed = ("changed", bench.now, b'{"order_id":2}', "json")
        assert bench.change(Replay("b", *changed, ("order_id=2",))).is_done
        others = ("others", bench.now, b'{"order_id":2,"customer":"x"}', "json")
        assert bench.change(Replay("c", *others, ("order_id=2", 'customer="x"'))).is_done
        assert found(bench, {"order_id": 1}) == ["a", "b", "c", "same"]
        assert found(bench, {"order_id": 2}) == ["changed", "others"]
        assert found(bench, {"customer": "x"}) == ["others"]
        worker = bench.enroll()
        assert {lease.id for lease in bench.take_when_there(worker, 3)} == {"same", "changed", "others"}

    def test_a_deleted_job_is_found_no_more(self, bench: Bench) -> None:
        bench.submit("a", after=HOUR, **order(1))
        assert bench.change(CancelJob("a")).is_done
        assert found(bench, {"order_id": 1}) == ["a"]
        assert bench.change(Delete("a")).is_done
        assert found(bench, {"order_id": 1}) == []
        bench.submit("a", after=HOUR, **order(2))  # another job with the same id
        assert found(bench, {"order_id": 1}) == []
        assert found(bench, {"order_id": 2}) == ["a"]
