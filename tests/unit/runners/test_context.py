"""A task starts from the context of its post, and from nothing else."""

from contextvars import Context, ContextVar

from mainspring import ThreadPool
from mainspring.testing import ManualClock

color: ContextVar[str] = ContextVar("color")


def colors_of_three_runs() -> list[str]:
    clock, seen = ManualClock(), []

    def look_and_paint() -> None:
        seen.append(color.get("none"))
        color.set("red")

    with ThreadPool(1, clock=clock) as pool:
        pool.sequenced().repeat(look_and_paint, every=1)
        clock.advance(3)
    return seen


def test_every_run_of_a_repetition_that_began_in_an_empty_context_starts_empty() -> None:
    assert Context().run(colors_of_three_runs) == ["none"] * 3
