"""Drafts: what is put, replaced and purged before anything is sent."""

from __future__ import annotations

import pytest

from mainspring.engines.nats.drafts import Draft, Put, schedule_headers


def test_a_second_message_to_a_subject_replaces_the_first_in_its_place() -> None:
    draft = Draft()
    assert [draft.put("a", b"1", 5), draft.put("b", b"2"), draft.put("a", b"3", 6)] == [0, 1, 0]
    assert draft.puts == [Put("a", b"3", 6), Put("b", b"2")]
    assert len(draft) == 2


def test_what_is_purged_is_not_put_and_what_is_put_after_that_is() -> None:
    draft = Draft()
    for subject in "abc":
        draft.put(subject, subject.encode())
    draft.purge("a", "unknown")
    assert [put.subject for put in draft.puts] == ["b", "c"]
    assert [draft.put("c", b"new"), draft.put("a", b"again")] == [1, 2]
    assert [(put.subject, put.data) for put in draft.puts] == [("b", b"b"), ("c", b"new"), ("a", b"again")]
    assert draft.purges == ["a", "unknown"], "what the subject held before is emptied"


def test_only_a_message_without_data_that_does_nothing_stands_for_nothing() -> None:
    draft = Draft()
    draft.schedule("at", "target", 1)
    draft.put("gone", b"", headers={"Nats-TTL": "1s"})
    draft.put("there", b"x")
    assert [put.is_empty for put in draft.puts] == [False, True, False]


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1970-01-01T00:00:00Z"),
        (1_700_000_000_000_001, "2023-11-14T22:13:20.000001Z"),
        (1_700_000_000_000_000, "2023-11-14T22:13:20Z"),
    ],
)
def test_a_schedule_names_its_instant_to_the_microsecond(instant: int, text: str) -> None:
    assert schedule_headers("target", instant) == {
        "Nats-Schedule": f"@at {text}",
        "Nats-Schedule-Target": "target",
    }


def test_what_is_to_be_done_afterwards_is_done_in_order_when_it_is_stored() -> None:
    draft = Draft()
    done: list[int] = []
    assert not draft.has_more
    draft.then(lambda: done.append(1))
    draft.then(lambda: done.append(2))
    assert (draft.has_more, done) == (True, [])
    draft.settle()
    assert done == [1, 2]
