"""Checks of the machine: files, clock, time zones."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainspring.doctor import machine
from mainspring.doctor.findings import Severity
from mainspring.doctor.machine import ZoneData, check_time_zones, find_zone_data
from mainspring.testing import ManualClock
from tests.unit.doctor.finding_assertions import assert_finding, is_all_ok

NOW = datetime(2027, 3, 1, tzinfo=UTC)


class SetClock(ManualClock):
    """A clock whose wall time a test sets."""

    ahead = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(super().now().timestamp() + self.ahead, UTC)


def test_python_is_named() -> None:
    assert "Python 3." in machine.check_python().what


def test_too_few_files_are_a_warning() -> None:
    assert_finding(machine.check_open_files(64), Severity.WARNING, "only 64 files")
    assert is_all_ok(machine.check_open_files(1_024))
    assert is_all_ok(machine.check_open_files(None))


def test_the_kernel_says_whether_its_clock_is_right() -> None:
    assert_finding(machine.check_synchronised(machine.UNSYNCHRONISED), Severity.INFO, "does not know")
    assert_finding(machine.check_synchronised(None), Severity.INFO, "unknown")
    assert is_all_ok(machine.check_synchronised(0))
    assert machine.clock_state() in {None, *range(6)}


@pytest.mark.parametrize(("step", "word"), [(3.0, "forward by 3 s"), (-0.5, "back by 500 ms")])
def test_a_clock_that_is_set_meanwhile_is_noticed(step: float, word: str) -> None:
    clock = SetClock()
    watch = machine.ClockWatch(clock)
    clock.jump(2)
    assert is_all_ok(watch.check())
    clock.ahead = step
    assert_finding(watch.check(), Severity.WARNING, word)


@pytest.mark.parametrize("version", ["2025b", "2025.2"])
def test_time_zone_data_grows_old(version: str) -> None:
    data = ZoneData("/usr/share/zoneinfo", version)
    finding = assert_finding(check_time_zones(data, NOW), Severity.WARNING, "/usr/share/zoneinfo", version)
    assert "PYTHONTZPATH" in finding.remedy
    assert is_all_ok(check_time_zones(data, datetime(2026, 6, 1, tzinfo=UTC)))


def test_an_old_package_is_upgraded_otherwise() -> None:
    data = ZoneData("the package tzdata", "2024.1", is_package=True)
    assert assert_finding(check_time_zones(data, NOW), Severity.WARNING).remedy == "pip install --upgrade tzdata"


def test_time_zone_data_may_be_missing_or_of_no_known_version() -> None:
    assert_finding(check_time_zones(None, NOW), Severity.ERROR, "no time zone data")
    assert_finding(check_time_zones(ZoneData("/zones", None), NOW), Severity.INFO, "/zones")


def test_the_first_folder_with_zones_counts_and_the_package_comes_last(tmp_path: Path) -> None:
    empty, system = tmp_path / "empty", tmp_path / "system"
    empty.mkdir()
    system.mkdir()
    found = find_zone_data([str(empty), str(tmp_path / "nowhere")])
    assert found is not None
    assert found.is_package
    (system / "UTC").touch()
    assert find_zone_data([str(empty), str(system)]) == ZoneData(str(system), None)
    (system / "tzdata.zi").write_text("# version 2026a\nR d 1916\n")
    assert find_zone_data([str(empty), str(system)]) == ZoneData(str(system), "2026a")
