"""Carrying out checks, and words for what they find."""

from collections.abc import Iterator

import pytest

from mainspring.doctor.findings import (
    Check,
    Finding,
    Report,
    Severity,
    carry_out,
    in_bytes,
    in_seconds,
    info,
    ok,
    some,
    warning,
)
from mainspring.errors import EngineUnavailable
from mainspring.plurals import format_count


def test_a_check_that_fails_is_a_finding() -> None:
    def fail() -> Finding:
        raise OSError("no such device")

    (finding,) = carry_out(Check("disk", fail))
    assert (finding.check, finding.severity) == ("disk", Severity.WARNING)
    assert finding.what == "this check failed: OSError: no such device"


def test_a_check_may_fail_after_its_first_finding() -> None:
    def fail() -> Iterator[Finding]:
        yield ok("fine")
        raise LookupError("gone")

    assert [finding.severity for finding in carry_out(Check("some", fail))] == [Severity.WARNING]


def test_a_store_that_is_unavailable_is_an_error_with_its_own_remedy() -> None:
    def fail() -> Finding:
        raise EngineUnavailable(engine="SQLite file a.db", reason="the disk is full", remedy="make room")

    (finding,) = carry_out(Check("jobs", fail))
    assert finding.severity is Severity.ERROR
    assert (finding.what, finding.remedy) == ("SQLite file a.db: the disk is full", "make room")


def test_a_report_is_as_bad_as_the_worst_in_it() -> None:
    found = (ok("a"), warning("b", "c", "d"), info("e"), ok("f"))
    report = Report(store="x", findings=found)
    assert report.worst is Severity.WARNING
    assert [report.count(severity) for severity in Severity] == [2, 1, 1, 0]
    assert Report(store="x", findings=()).worst is Severity.OK


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (0.0000042, "4 µs"),
        (0.00123, "1.23 ms"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (119, "119 s"),
        (120, "2 min"),
        (152.4, "2 min 32 s"),
        (7_200, "2 h"),
        (86_400 * 30, "30 days"),
    ],
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert in_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1_023, "1023 bytes"), (1 << 20, "1 MiB"), (1_000 << 30, "1,000 GiB")]
)
def test_sizes_are_read_at_a_glance(size: int, text: str) -> None:
    assert in_bytes(size) == text


def test_many_names_are_a_few_and_a_number() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some(list("abcdefg")) == "a, b, c, d, e and 2 more"
    assert (format_count(1, "copy", "copies"), format_count(2_000, "copy", "copies")) == ("1 copy", "2,000 copies")
