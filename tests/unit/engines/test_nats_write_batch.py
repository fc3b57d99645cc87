"""Write batches: what is put, replaced and purged before anything is sent."""

from __future__ import annotations

import pytest

from mainspring.engines.nats.write_batch import Write, WriteBatch, schedule_headers


def test_a_second_message_to_a_subject_replaces_the_first_in_its_place() -> None:
    batch = WriteBatch()
    assert [batch.put("a", b"1", 5), batch.put("b", b"2"), batch.put("a", b"3", 6)] == [0, 1, 0]
    assert batch.writes == [Write("a", b"3", 6), Write("b", b"2")]
    assert len(batch) == 2


def test_what_is_purged_is_not_put_and_what_is_put_after_that_is() -> None:
    batch = WriteBatch()
    for subject in "abc":
        batch.put(subject, subject.encode())
    batch.purge("a", "unknown")
    assert [write.subject for write in batch.writes] == ["b", "c"]
    assert [batch.put("c", b"new"), batch.put("a", b"again")] == [1, 2]
    assert [(write.subject, write.data) for write in batch.writes] == [("b", b"b"), ("c", b"new"), ("a", b"again")]
    assert batch.purges == ["a", "unknown"], "what the subject held before is emptied"


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
    batch = WriteBatch()
    done: list[int] = []
    assert not batch.has_callbacks
    batch.after_commit(lambda: done.append(1))
    batch.after_commit(lambda: done.append(2))
    assert (batch.has_callbacks, done) == (True, [])
    batch.run_callbacks()
    assert done == [1, 2]
