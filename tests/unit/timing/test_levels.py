"""One level of the timing wheel by itself."""

import pytest

from mainspring.timing.wheel import ARRIVAL_BITS, Level, is_roomy

SHIFT = ARRIVAL_BITS + 4  # slots of 16 ns


def entry(due: int, arrival: int = 1) -> int:
    return (due << ARRIVAL_BITS) + arrival


def level_with(*dues: int) -> Level[int]:
    level: Level[int] = Level(SHIFT)
    level.pour((entry(due, arrival), due) for arrival, due in enumerate(dues, 1))
    return level


def test_pouring_puts_each_timer_into_its_slot() -> None:
    level = level_with(-1, 0, 15, 16, 31, 32)
    assert {slot: list(bucket.values()) for slot, bucket in level.buckets.items()} == {
        -1: [-1],
        0: [0, 15],
        1: [16, 31],
        2: [32],
    }


def test_pouring_separates_timers_however_late_they_are() -> None:
    for due in [2**power for power in range(4, 200)]:
        level = level_with(due, 0)
        assert {slot: list(bucket.values()) for slot, bucket in level.buckets.items()} == {
            due // 16: [due],
            0: [0],
        }


def test_taking_removes_whole_slots_earliest_first() -> None:
    level = level_with(50, 40, 0, 16, 15)
    assert [list(bucket.values()) for bucket in level.take(3)] == [[0, 15], [16], [40]]
    assert list(level.buckets) == [3]
    assert level.take(3) == []


def test_a_bucket_is_made_once() -> None:
    level: Level[int] = Level(SHIFT)
    assert level.bucket(5) is level.bucket(5)
    assert level.slots == [5]


def test_the_earliest_of_few_is_exact() -> None:
    assert level_with(23, 21, 40).earliest() == entry(21, 2)


def test_the_earliest_of_many_is_the_beginning_of_their_slot() -> None:
    assert level_with(*[21] * 1000).earliest() == entry(16, 0)


@pytest.mark.parametrize(("count", "is_exact"), [(64, True), (65, False)])
def test_the_earliest_is_exact_for_up_to_64_timers_in_its_slot(count: int, *, is_exact: bool) -> None:
    assert level_with(*[21] * count).earliest() == (entry(21, 1) if is_exact else entry(16, 0))


def test_an_empty_level_has_no_earliest() -> None:
    assert level_with().earliest() is None


def test_the_earliest_is_never_a_hollow_slot() -> None:
    level = level_with(5, 21)
    level.pop(entry(5, 1), None)
    assert level.earliest() == entry(21, 2)
    assert list(level.buckets) == level.slots == [1]


def test_popping_finds_only_what_is_there() -> None:
    level = level_with(5)
    assert level.pop(entry(5, 2), "nothing") == "nothing"
    assert level.pop(entry(21, 1), "nothing") == "nothing"
    assert level.pop(entry(5, 1), "nothing") == 5
    assert level.pop(entry(5, 1), "nothing") == "nothing"


def test_hollow_slots_do_not_pile_up() -> None:
    level = level_with(0)
    for number in range(1, 100_000):
        level.bucket(number)[entry(16 * number)] = 0
        level.pop(entry(16 * number), None)
    assert len(level.buckets) < 30_000
    assert sorted(level.slots) == sorted(level.buckets)


def test_timers_survive_a_sweep_of_hollow_slots() -> None:
    dues = [16 * (7919 * number % 60_000) for number in range(60_000)]
    level = level_with(*dues)
    for arrival, due in enumerate(dues, 1):
        if due % 16_000:
            level.pop(entry(due, arrival), None)
    assert len(level.buckets) < 20_000
    assert [due for bucket in level.take(60_000) for due in bucket.values()] == list(range(0, 960_000, 16_000))


def test_a_level_gives_storage_back_when_all_is_taken() -> None:
    level = level_with(*range(0, 16_000, 16))
    level.take(1000)
    assert level.buckets.__sizeof__() == {}.__sizeof__()


def test_a_level_gives_storage_back_when_all_is_canceled() -> None:
    level = level_with(*range(0, 16_000, 16))
    for number in range(1000):
        level.pop(entry(16 * number, number + 1), None)
    assert level.earliest() is None
    assert level.buckets.__sizeof__() == {}.__sizeof__()


def test_a_bucket_gives_storage_back_while_it_shrinks() -> None:
    level = level_with(*[5] * 10_000)
    full = level.buckets[0].__sizeof__()
    for arrival in range(1, 9_901):
        level.pop(entry(5, arrival), None)
    assert len(level.buckets[0]) == 100
    assert level.buckets[0].__sizeof__() < full / 20


@pytest.mark.parametrize("size", [*range(100), 1_000, 10_000])
def test_a_dict_without_spare_storage_is_not_roomy(size: int) -> None:
    assert not is_roomy(dict.fromkeys(range(size)).copy())


@pytest.mark.parametrize("left", [0, 1, 10, 100])
def test_a_dict_that_has_lost_most_of_its_entries_is_roomy(left: int) -> None:
    bucket = dict.fromkeys(range(10_000))
    for number in range(left, 10_000):
        del bucket[number]
    assert is_roomy(bucket)
