"""Copies of a file that is in use."""

from pathlib import Path
from threading import Event, Thread

import pytest

from mainspring.errors import EngineUnavailable
from mainspring.jobs.engine import Capability
from mainspring.jobs.records import OutcomeKind
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.support import PATIENCE
from tests.unit.engines.crash_points import integrity, opened

BATCH = 50


def test_a_backup_holds_everything_and_can_be_worked_on(bench: Bench, tmp_path: Path, clock: ManualClock) -> None:
    bench.bury("letter")
    bench.submit("job")
    bench.engine.backup(str(tmp_path / "copy.db"))
    bench.submit("later")
    with opened(tmp_path / "copy.db", clock) as copy:
        assert copy.find_ids() == ["letter", "job"]
        worker, lease = copy.take_by_new_worker()
        assert copy.settle(worker, lease, OutcomeKind.COMPLETED)
    assert bench.status("job") is JobStatus.PENDING


@pytest.mark.long
def test_backups_made_while_others_write_are_whole(bench: Bench, tmp_path: Path, clock: ManualClock) -> None:
    first, enough = Event(), Event()

    def write() -> None:
        number = 0
        while not enough.is_set():
            bench.submit(*(f"{number} {place}" for place in range(BATCH)))
            number += 1
            first.set()

    writer = Thread(target=write, daemon=True)
    writer.start()
    assert first.wait(PATIENCE)
    counts = []
    for number in range(5):
        target = tmp_path / f"{number}.db"
        bench.engine.backup(str(target))
        assert integrity(target) == "ok"
        with opened(target, clock) as copy:
            counts.append(copy.engine.counts()[JobStatus.PENDING])
            assert len(copy.find_ids(limit=1_000_000)) == counts[-1]
    enough.set()
    writer.join(PATIENCE)
    assert counts == sorted(counts)
    assert all(count >= BATCH and count % BATCH == 0 for count in counts)


def test_an_existing_file_is_not_overwritten(bench: Bench, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("precious")
    with pytest.raises(FileExistsError, match=r"copy\.db exists"):
        bench.engine.backup(str(target))
    assert target.read_text() == "precious"


def test_a_backup_that_fails_says_what_to_check_and_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "copy.db"
    with pytest.raises(EngineUnavailable, match=r"copy\.db failed.*directory"):
        bench.engine.backup(str(target))
    assert not target.exists()
    assert Capability.BACKUP in bench.engine.capabilities
