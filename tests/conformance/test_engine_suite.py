"""The suite for engines is whole: no part hides what another one says, and nothing is left out unsaid."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.engine import Capability
from mainspring.testing import EngineConformance, ManualClock
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench
from mainspring.testing.conformance.capabilities import (
    all_tests,
    capabilities_needed_by,
    capabilities_needed_by_suite,
    needs,
)
from mainspring.testing.conformance.engine_time import MAX_REAL_SECONDS

TWO = frozenset({Capability.BACKUP, Capability.SHARED})


class Part(EngineSuite):
    def test_of_all(self) -> None:
        """Ask for nothing."""

    @needs(Capability.BACKUP)
    def test_of_one(self) -> None:
        """Ask for one capability."""

    @needs(Capability.BACKUP, Capability.SHARED)
    @pytest.mark.parametrize("number", [1, 2])
    def test_of_two(self, number: int) -> None:
        """Ask for two."""


class WithoutBackup(Part):
    lacks = frozenset({Capability.BACKUP})


class WithoutSharing(Part):
    lacks = frozenset({Capability.SHARED})


class WithAll(WithoutBackup):
    lacks = frozenset()


class RealTimeEngine(MemoryEngine):
    capabilities = frozenset({Capability.ATOMIC_UNIT})


def collected(suite: type) -> list[str]:
    """Return the tests that pytest finds in a class: what can be called, whatever else has the name of a test."""
    return [name for name in dir(suite) if name.startswith("test_") and callable(getattr(suite, name))]


@pytest.fixture
def real_bench() -> Iterator[Bench]:
    bench = Bench(RealTimeEngine(), ManualClock())
    yield bench
    bench.engine.close()


# -- the suite


def test_no_part_of_the_suite_hides_a_test_of_another() -> None:
    parts = [part for part in EngineConformance.__bases__ if part is not EngineSuite]
    names = Counter(name for part in parts for name in vars(part) if not name.startswith("__"))
    assert len(parts) > 1
    assert [name for name, uses in names.items() if uses > 1] == []


def test_the_suite_itself_leaves_nothing_out() -> None:
    assert sorted(collected(EngineConformance)) == sorted(all_tests(EngineConformance))


def test_most_of_the_suite_holds_for_every_engine() -> None:
    tests = all_tests(EngineConformance)
    assert sum(not capabilities_needed_by(test) for test in tests.values()) > 0.75 * len(tests)


# -- needs and lacks


@pytest.mark.parametrize(
    ("suite", "expected"),
    [
        (Part, ["test_of_all", "test_of_one", "test_of_two"]),
        (WithoutBackup, ["test_of_all"]),
        (WithoutSharing, ["test_of_all", "test_of_one"]),
        (WithAll, ["test_of_all", "test_of_one", "test_of_two"]),
    ],
)
def test_a_test_is_left_out_if_anything_that_it_needs_is_lacking(suite: type, expected: list[str]) -> None:
    assert collected(suite) == expected


def test_what_is_left_out_is_still_known_to_be_needed() -> None:
    assert capabilities_needed_by_suite(WithoutBackup) == capabilities_needed_by_suite(Part) == TWO


def test_a_mark_keeps_other_marks() -> None:
    assert [mark.name for mark in vars(Part.test_of_two)["pytestmark"]] == ["parametrize"]
    assert capabilities_needed_by(Part.test_of_two) == TWO


def test_a_mark_without_a_capability_is_refused() -> None:
    with pytest.raises(TypeError, match="name at least one"):
        needs()


def tell_the_truth(suite: type[EngineConformance], bench: Bench) -> None:
    suite().test_it_lacks_what_the_class_of_its_tests_says_and_nothing_else(bench)


def test_lacks_must_tell_the_truth(real_bench: Bench) -> None:
    truth = capabilities_needed_by_suite(EngineConformance) - RealTimeEngine.capabilities

    class Truthful(EngineConformance):
        lacks = truth

    class Modest(EngineConformance):
        lacks = truth | {Capability.ATOMIC_UNIT}

    class Boastful(EngineConformance):
        lacks = truth - {Capability.FORESIGHT}

    tell_the_truth(Truthful, real_bench)
    with pytest.raises(AssertionError, match="ATOMIC_UNIT"):
        tell_the_truth(Modest, real_bench)
    with pytest.raises(AssertionError, match="FORESIGHT"):
        tell_the_truth(Boastful, real_bench)


# -- real time


def test_a_test_that_passes_much_time_must_be_marked(real_bench: Bench) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"@needs\(Capability\.VIRTUAL_TIME\)"):
        real_bench.pass_time(MAX_REAL_SECONDS + 1)


def test_a_little_time_is_really_waited_for(real_bench: Bench) -> None:
    before = real_bench.now
    real_bench.pass_time(0.05)
    assert real_bench.now - before >= 50_000
    assert real_bench.clock.monotonic_ns() == 0


def test_what_comes_late_on_a_server_is_waited_for_and_on_virtual_time_not(real_bench: Bench) -> None:
    virtual_bench = Bench(MemoryEngine(clock=(clock := ManualClock())), clock)
    assert real_bench.eventually(true_the_third_time())
    assert not virtual_bench.eventually(true_the_third_time())


def true_the_third_time() -> Callable[[], bool]:
    """Return a check that holds from its third call on."""
    answers = iter([False, False])
    return lambda: next(answers, True)


def test_jobs_are_taken_as_they_come(real_bench: Bench) -> None:
    worker = real_bench.enroll()
    real_bench.submit("now")
    real_bench.submit("soon", after=0.1)
    assert real_bench.ids_when_there(worker, 2, ahead=0) == ["now", "soon"]
