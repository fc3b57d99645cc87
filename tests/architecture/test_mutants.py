"""`tests/mutants.toml` names only what exists, and `scripts/mutants.py` judges results by it."""

import tomllib
from collections import Counter

import pytest

from scripts.mutants import LIST, ROOT, Mutant, Part, read_parts, report_on

SURVIVOR = ("Retry.delay_after", "survived", "return a + b", "return a - b")
KNOWN = Mutant("Retry.delay_after", "return a + b", "return a - b")


def part(*equivalent: Mutant) -> Part:
    return Part("retry", "jobs/retry.py", [], [], Counter(equivalent))


def killed(count: int) -> list[tuple[str, str, str, str]]:
    return [("f", "killed", str(number), "") for number in range(count)]


@pytest.mark.parametrize("part", read_parts().values(), ids=lambda part: part.name)
def test_every_module_and_test_of_the_list_exists(part: Part) -> None:
    assert all((ROOT / path.partition("::")[0]).is_file() for path in (part.module, *part.tests, *part.left_out))


def test_the_list_says_why_a_mutant_is_equivalent() -> None:
    entries = tomllib.loads(LIST.read_text()).values()
    assert all(known["why"].strip() for entry in entries for known in entry.get("equivalent", []))


def test_a_survivor_lowers_the_score_and_nine_of_ten_are_enough() -> None:
    report = report_on(part(), [*killed(9), SURVIVOR])
    assert (report.score, report.is_good) == (90, True)
    assert not report_on(part(), [*killed(8), SURVIVOR]).is_good


def test_an_equivalent_mutant_is_not_counted() -> None:
    report = report_on(part(KNOWN), [*killed(1), SURVIVOR])
    assert (report.score, report.is_good) == (100, True)


def test_each_entry_of_the_list_is_for_one_mutant() -> None:
    report = report_on(part(KNOWN), [*killed(1), SURVIVOR, SURVIVOR])
    assert (report.score, report.is_good) == (50, False)


def test_an_entry_that_does_not_survive_is_wrong() -> None:
    assert not report_on(part(KNOWN), killed(10)).is_good


def test_a_time_out_is_a_kill_that_is_shown() -> None:
    report = report_on(part(), [("f", "timeout", "a", "b")])
    assert (report.score, report.timeouts) == (100, [Mutant("f", "a", "b")])


@pytest.mark.parametrize("status", ["survived", "no tests", "suspicious", "segfault", "not checked"])
def test_everything_else_is_a_survivor(status: str) -> None:
    assert report_on(part(), [("f", status, "a", "b")]).score == 0
