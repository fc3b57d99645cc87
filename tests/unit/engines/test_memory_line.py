"""The line of the memory engine, compared with a list that is sorted anew each time."""

import hypothesis.strategies as st
from hypothesis import given

from mainspring.engines.memory.line import MIN_GONE, Line, Stand

ids = st.sampled_from("abcdef")


@given(st.lists(st.tuples(ids, st.one_of(st.none(), st.integers(0, 5))), max_size=60))
def test_the_first_is_the_least_of_those_who_stand(moves: list[tuple[str, int | None]]) -> None:
    line = Line()
    stands: dict[str, Stand] = {}
    for job_id, instant in moves:
        if instant is None:
            line.leave(job_id)
            stands.pop(job_id, None)
        else:
            line.enter(job_id, instant, ord(job_id))
            stands[job_id] = ((instant, ord(job_id)), job_id)
        first = min(stands.values(), default=None)
        assert (line.first(), len(line)) == (first, len(stands))
        assert line.first_until(2) == (first if first is not None and first[0][0] <= 2 else None)


def test_a_job_that_is_put_off_again_and_again_costs_no_memory() -> None:
    line = Line()
    line.enter("first", 0, 0)
    for instant in range(10 * MIN_GONE):
        line.enter("debounced", instant, 1)
    assert len(line._heap) <= 2 * len(line) + MIN_GONE
    line.leave("first")
    assert line.first() == ((10 * MIN_GONE - 1, 1), "debounced")
