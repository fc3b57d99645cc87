"""Requests with an idempotency key: who may carry one out, against a naive model; ids that follow each other."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.jobs.ids import JobIds, first_id, ids_from, nth_id
from mainspring.jobs.request_records import NewRequest, RequestEnd, RequestIds, RequestRecord, begun, ended

NOW = 1_700_000_000_000_000
FORM = re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")


def test_ids_have_the_form_of_all_ids_and_sort_by_time() -> None:
    (usual,) = JobIds().make(NOW)
    first = first_id(NOW)
    assert FORM.fullmatch(usual)
    assert FORM.fullmatch(first)
    assert first[:13] == usual[:13]
    assert first_id(NOW) != first
    assert first < first_id(NOW + 1_000)


def test_the_ids_of_a_request_follow_each_other_and_are_always_the_same() -> None:
    first = first_id(NOW)
    ids = ids_from(first, 10_000)
    assert ids[0] == first
    assert ids == sorted(set(ids))
    assert all(FORM.fullmatch(each) for each in ids)
    assert [nth_id(first, n) for n in (0, 1, 9_999)] == [ids[0], ids[1], ids[9_999]]


def test_ids_count_over_the_border_between_their_parts() -> None:
    border = "018bcfe56800" + "7000" + "bfffffffffffffff"
    assert ids_from(border, 2) == [border, "018bcfe56800" + "7001" + "8000000000000000"]


def test_parts_of_a_request_take_their_ids_in_order() -> None:
    ids = RequestIds(first := first_id(NOW))
    assert [*ids.take(), *ids.take(3), *ids.take(0), *ids.take(2)] == ids_from(first, 6)
    again = RequestIds(first)
    assert again.take(6) == ids_from(first, 6)


def test_ids_know_whether_an_earlier_attempt_may_have_used_them() -> None:
    assert RequestIds("a").is_resumed is False
    assert RequestIds("a", is_resumed=True).is_resumed is True


def new(owner: str, digest: str = "d") -> NewRequest:
    return NewRequest(
        caller="c", key="k", digest=digest, first_id=f"of {owner}", owner=owner, kept=1_000, busy=100, most=9
    )


def test_a_new_record_is_that_of_its_caller_and_key() -> None:
    record = begun(None, new("a"), NOW)
    assert record == RequestRecord(
        caller="c",
        key="k",
        digest="d",
        first_id="of a",
        owner="a",
        busy_until=NOW + 100,
        created=NOW,
        expires=NOW + 1_000,
    )


def test_another_request_takes_a_record_over_at_the_instant_that_it_is_not_busy_any_more() -> None:
    record = begun(None, new("a"), NOW)
    assert begun(record, new("b"), NOW + 99) is record
    assert begun(record, new("b"), NOW + 100) == replace(record, owner="b", busy_until=NOW + 200)


def test_a_key_is_free_at_the_instant_that_its_record_expires() -> None:
    record = begun(None, new("a"), NOW)
    end = RequestEnd(caller="c", key="k", owner="a", answer=b"x")
    assert ended(record, end, NOW + 999) is not None
    assert ended(record, end, NOW + 1_000) is None
    assert begun(record, new("b", "other"), NOW + 1_000).created == NOW + 1_000


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin other body", "end", "end without answer"]),
        st.sampled_from("abc"),
        st.integers(0, 150),
    ),
    max_size=30,
)


@given(STEPS)
def test_records_behave_as_a_naive_model(steps: list[tuple[str, str, int]]) -> None:
    """The model: a key is free, busy until an instant, waiting for a repetition, or answered, until it expires."""
    record: RequestRecord | None = None
    now, number = 0, 0
    born = busy_until = -1_000
    owner, answer, body, first = "", None, "", ""
    for kind, name, passed in steps:
        now += passed
        if now >= born + 1_000:
            owner, answer, body, first = "", None, "", ""
        if kind.startswith("begin"):
            number += 1
            request = new(f"{name}{number}", "other" if "other" in kind else "d")
            if not body:
                born, busy_until = now, now + 100
                owner, body, first = request.owner, request.digest, request.first_id
            elif answer is None and body == request.digest and now >= busy_until:
                owner, busy_until = request.owner, now + 100
            record = begun(record, request, now)
            assert (record.owner, record.digest, record.first_id, record.answer) == (owner, body, first, answer)
            assert (record.created, record.expires) == (born, born + 1_000)
        else:
            given_answer = None if "without" in kind else f"{number}".encode()
            end = RequestEnd(caller="c", key="k", owner=f"{name}{number}", answer=given_answer)
            after = ended(record, end, now)
            is_mine = bool(body) and owner == end.owner and answer is None
            assert (after is not None) is is_mine
            if after is not None:
                answer, busy_until = given_answer, 0
                record = after
                assert record.answer == given_answer


def test_a_record_of_a_newer_version_has_more_fields_at_its_end() -> None:
    record = begun(None, new("a"), NOW)
    assert ended(record, RequestEnd(caller="c", key="k", owner="a", answer=b"x"), NOW) == replace(
        record, busy_until=0, answer=b"x"
    )
