"""Examinations of whole stores: what is looked at, what is left out, and that nothing is changed."""

import os
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from mainspring import Mainspring
from mainspring.doctor import Report, Severity, examine
from mainspring.engines.sqlite.schema import APPLICATION_ID, MIGRATIONS, VERSION

PLACE = ["file", "file-system", "permissions", "disk", "fsync"]
CONTENT = ["schema", "journal", "integrity", "log", "free-pages", "times", "activity"]
JOBS = [
    "workers",
    "handlers",
    "queues",
    "lateness",
    "paused",
    "quotas",
    "slots",
    "dead-letters",
    "schedules",
    "signatures",
]
MACHINE = ["python", "open-files", "time-zones", "synchronised", "url"]


@pytest.fixture
def app(tmp_path: Path) -> Mainspring:
    """An application; its store is not made yet."""
    app = Mainspring(f"sqlite:///{tmp_path / 'shop.db'}", durability="normal", grace=0)

    @app.job(name="ping")
    def ping() -> None: ...

    @app.every(60, name="often")
    def often() -> None: ...

    return app


def names(report: Report) -> list[str]:
    return list(dict.fromkeys(finding.check for finding in report.findings))


def bad(report: Report) -> dict[str, str]:
    """What is wrong with the store, whatever the machine is like."""
    found = [f for f in report.findings if f.severity.rank >= Severity.WARNING.rank and f.check not in MACHINE]
    return {finding.check: finding.what for finding in found if finding.check not in ("file-system", "fsync")}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_store_at_work_is_in_order(app: Mainspring) -> None:
    checked: list[int] = []
    with app.running():
        report = examine(app, on_step=checked.append)
    app.close()
    assert bad(report) == {}
    assert names(report) == [*MACHINE, *PLACE, "durability", *CONTENT, *JOBS, "clock", "callbacks"]
    assert sum(checked) == len(names(report)) + 1  # the look at all jobs finds nothing by itself


def test_without_handlers_it_is_said_what_is_left_out(app: Mainspring) -> None:
    with app.running():
        report = examine(Mainspring(app.url), has_handlers=False)
    app.close()
    assert names(report) == [*MACHINE, *PLACE, *CONTENT, *JOBS, "clock", "application"]
    assert "handlers, schedules" in report.findings[-1].what


def test_a_schedule_that_is_declared_anew_is_not_stored_yet(app: Mainspring) -> None:
    changed = Mainspring(app.url, durability="normal")

    @changed.every(90, name="often")
    def often() -> None: ...

    @changed.every(90, name="seldom")
    def seldom() -> None: ...

    with app, app.running():
        found = [finding.what for finding in examine(changed).findings if finding.check == "schedules"]
    assert "schedules are stored differently than the application declares them: often" in found
    assert any("not stored" in what and what.endswith(": seldom") for what in found)


def test_several_faults_are_all_told_and_the_store_stays_as_it_is(app: Mainspring, tmp_path: Path) -> None:
    with app:
        app.manager().submit("ping")
        app.queue("mail").pause()
    (tmp_path / "shop.db").chmod(0o666)
    before = files(tmp_path)
    report = examine(app)
    assert set(bad(report)) == {"permissions", "workers", "schedules"}
    assert report.worst is Severity.ERROR
    after = files(tmp_path)
    assert {name: after[name] for name in before} == before


def test_thousands_of_jobs_at_the_same_instant_are_reported(app: Mainspring) -> None:
    job = app.job(name="digest")(print)
    with app.running():
        job.after(3_600).submit_many([()] * 1_500)
        job.after(7_200).submit()
        report = examine(app)
    app.close()
    assert bad(report)["slots"].startswith(
        "1,500 jobs of digest in queue default become due within the same 268 ms"
    )


def test_a_missing_store_is_an_error_and_is_not_made(app: Mainspring, tmp_path: Path) -> None:
    report = examine(app)
    assert bad(report) == {"file": f"there is no file {tmp_path / 'shop.db'}"}
    assert names(report) == [*MACHINE, *PLACE, "durability", "jobs", "clock", "callbacks"]
    assert list(tmp_path.iterdir()) == []


def test_an_older_store_is_not_upgraded(app: Mainspring, tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "shop.db"))
    connection.execute(MIGRATIONS[0])
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1")
    connection.execute("PRAGMA journal_mode = wal")
    connection.close()
    report = examine(app)
    assert bad(report) == {}
    (left_out,) = [finding for finding in report.findings if finding.check == "jobs"]
    assert left_out.what == "left out: jobs, workers and schedules: opening the file would migrate its schema"
    connection = apsw.Connection(str(tmp_path / "shop.db"))
    assert connection.pragma("user_version") == 1
    connection.close()


def test_a_store_that_is_too_new_or_no_store_is_an_error(app: Mainspring, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with app:
        app.manager()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", VERSION + 1)
    connection.close()
    report = examine(app)
    assert f"version {VERSION + 1}" in bad(report)["schema"]
    path.write_text("nothing of this is a database" * 100)
    assert "not a database" in bad(examine(app))["schema"]


def test_a_damaged_store_is_not_opened(app: Mainspring, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with app:
        for number in range(200):
            app.manager().submit("ping", id=f"{number:0>200}")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4_096 * 4_096
    data[middle : middle + 4 * 4_096] = b"\x55" * (4 * 4_096)
    path.write_bytes(data)
    report = examine(app)
    assert "damaged" in bad(report)["integrity"]
    assert "workers" not in names(report)
    assert path.read_bytes() == bytes(data)


def test_an_empty_file_is_a_store_to_be(app: Mainspring, tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    assert bad(examine(app)) == {}
    assert files(tmp_path) == {"shop.db": b""}


def test_a_store_that_one_may_not_even_see_is_an_error(
    app: Mainspring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | Path) and Path(path).is_relative_to(tmp_path):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
    report = examine(app)
    assert "may not access the store" in bad(report)["file"]
    assert "left out: jobs, workers and schedules: the file cannot be read" in [f.what for f in report.findings]


def test_memory_can_only_be_seen_from_inside() -> None:
    report = examine(Mainspring("memory://"))
    assert names(report) == [*MACHINE, "store", "clock", "callbacks"]


def test_the_client_of_nats_may_not_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mainspring.engines.nats.engine", None)
    report = examine(Mainspring("nats://127.0.0.1:1"))
    (finding,) = [finding for finding in report.findings if finding.check == "server"]
    assert finding.severity is Severity.ERROR
    assert finding.remedy == "pip install 'mainspring[nats]'"
