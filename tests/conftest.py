"""Settings of all tests: assertions, Hypothesis, temporary files, the garbage collector, the manual clock.

Assertions: those of helpers show their values, as those of tests do.

Hypothesis: examples have no deadline, because on a busy machine any of them may take long. They are random, so
each run tries others, and `make soak` tries more of them. A failure prints a line `@reproduce_failure(...)` that
repeats it.

Temporary files: tests make thousands of small databases, and an fsync on a busy disk takes up to a tenth of a
second. On Linux `/dev/shm` is a file system with the same locks and the same shared memory, and its files survive
`kill -9`. No test cuts the power, so no test needs the disk. Set `TMPDIR` to have the files elsewhere.

Garbage collector: modules and collected tests live until the end. The collector is told to leave them alone, and
to run more rarely: with its usual threshold it takes a twentieth of the time of all tests.

Opens of databases: an audit hook forbids the package to open a SQLite file that the process has open, here and in
the processes that tests start (`tests/store_opens/start/sitecustomize.py`).

Manual clock: it gives users ten real seconds for what has to come to rest. A busy machine may need more.
"""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from mainspring.testing import manual_clock
from mainspring.testing.polling import PATIENCE_SECONDS
from tests.store_opens.start import sitecustomize as store_opens
from tests.support import amount

for folder in ("browser", "cli", "conformance", "nats", "old_stores", "processes", "stress", "unit"):
    pytest.register_assert_rewrite(f"tests.{folder}")

pytest_plugins = ["tests.pools"]

MEMORY = Path("/dev/shm")
ROOM = 2 * 1024**3  # bytes: several times what a run of all tests occupies at once

settings.register_profile(
    "mainspring",
    parent=settings.get_profile("default"),
    deadline=None,
    max_examples=amount(50, thorough=200),
    print_blob=True,
)
settings.load_profile("mainspring")


def has_room(folder: Path) -> bool:
    """Answer whether tests can keep their files in this folder."""
    return os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free >= ROOM


if "TMPDIR" not in os.environ and has_room(MEMORY):
    os.environ["TMPDIR"] = str(MEMORY)  # for child processes
    tempfile.tempdir = str(MEMORY)


def pytest_collection_finish() -> None:
    """Spare the collector what stays anyway."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


STORE_OPENS = Path(tempfile.mkdtemp(prefix="mainspring-opens-")) / "report"
atexit.register(shutil.rmtree, STORE_OPENS.parent, ignore_errors=True)
if store_opens.REPORT not in os.environ:  # a worker of pytest-xdist has the hook from its start
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(store_opens.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    store_opens.forbid_opens(str(STORE_OPENS))
os.environ[store_opens.REPORT] = str(STORE_OPENS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail if the package has opened a database that the process has open, during this test or in a process of
    it.
    """
    yield
    if STORE_OPENS.exists():
        report = STORE_OPENS.read_text()
        STORE_OPENS.unlink()
        pytest.fail(report, pytrace=False)


manual_clock.PATIENCE_SECONDS = PATIENCE_SECONDS
