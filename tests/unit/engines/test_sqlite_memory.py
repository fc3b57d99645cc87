"""`memory://`: one SQLite database in memory, without a file, that ends with its engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring import EngineUnavailable, Mainspring
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.records import Query
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.programs import program
from tests.support import PATIENCE, Background, Gate

FORK = """
import os
from mainspring import Mainspring

app = Mainspring("memory://")
job = app.job(name="print")(print)
with app.running():
    job.after(60).submit()
    child = os.fork()
    if child == 0:
        job.after(60).submit()
        job.after(60).submit()
        os._exit(10 + app.counts()["PENDING"])
    _, status = os.waitpid(child, 0)
    job.after(60).submit()
    print(os.waitstatus_to_exitcode(status), app.counts()["PENDING"])
"""

FORK_DURING_A_READ = """
import os
from threading import Event, Thread
from mainspring.engines.sqlite.memory import MemoryConnectionPool

pool = MemoryConnectionPool()
happened = []
entered, forking = Event(), Event()

def read():
    with pool.reader() as connection:
        entered.set()
        forking.wait()
        for _ in range(1_000):
            connection.execute("SELECT 1")
        happened.append("read")

os.register_at_fork(before=forking.set, after_in_parent=lambda: happened.append("forked"))
thread = Thread(target=read)
thread.start()
entered.wait()
if child := os.fork():
    os.waitpid(child, 0)
    thread.join()
    print(*happened)
else:
    other = Thread(target=pool.reader().__enter__)  # the lock is free again, for other threads, too
    other.start()
    other.join()
    os._exit(0)
"""


@pytest.fixture
def bench(clock: ManualClock) -> Bench:
    return Bench(MemoryEngine(clock=clock), clock)


def ids(bench: Bench) -> list[str]:
    return [record.id for record in bench.engine.find(Query()).records]


def test_jobs_survive_that_the_engine_is_closed(bench: Bench) -> None:
    bench.submit("job")
    bench.engine.close()
    bench.engine.open(lambda: None)
    assert ids(bench) == ["job"]


def test_engines_share_nothing_and_make_no_file(
    bench: Bench, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = Bench(MemoryEngine(clock=clock), clock)
    worker, lease = bench.begin("job")
    bench.complete(worker, lease)
    bench.engine.leave(worker)
    assert (ids(bench), ids(other)) == (["job"], [])
    assert list(tmp_path.iterdir()) == []


def test_a_unit_that_fails_leaves_nothing(bench: Bench) -> None:
    def fail() -> None:
        with bench.engine.unit(durable=True):
            bench.submit("job")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ids(bench) == []


def test_a_reader_waits_for_the_unit_of_another_thread(bench: Bench) -> None:
    gate = Gate()

    def submit() -> None:
        with bench.engine.unit(durable=True):
            bench.submit("job")
            gate()

    writing = Background(submit)
    gate.wait_until_entered()
    reading = Background(lambda: ids(bench))
    gate.open()
    writing.result()
    assert reading.result() == ["job"]


@pytest.mark.long
def test_a_forked_child_has_an_empty_store_and_its_parent_goes_on() -> None:
    with program("-W", "ignore::DeprecationWarning", "-c", FORK) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert (output, errors, process.returncode) == ("12 2\n", "", 0)


def test_a_fork_waits_until_no_thread_is_inside_of_sqlite() -> None:
    with program("-W", "ignore::DeprecationWarning", "-c", FORK_DURING_A_READ) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert (output, errors, process.returncode) == ("read forked\n", "", 0)


def test_a_backup_is_refused(tmp_path: Path) -> None:
    with Mainspring("memory://") as app, pytest.raises(EngineUnavailable, match="memory cannot be backed up"):
        app.backup(str(tmp_path / "copy.db"))
