"""Units on the threads of callers: interrupts, signal handlers, finalizers and forks in the middle of a commit."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from threading import Event, Semaphore, Thread, current_thread, get_ident

import apsw
import pytest

from mainspring import EngineUnavailable, ThreadPool
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs import JobManager
from tests.programs import program
from tests.support import PATIENCE, Background, amount, within

pytestmark = pytest.mark.long

KINDS = ("sqlite", "memory")
HOUR = 3_600


class Probe:
    """Notes the threads of commits, and calls a function once before or after a statement."""

    def __init__(self) -> None:
        self.commits: list[Thread] = []
        self._at: tuple[str, str] | None = None
        self._function: Callable[[], object] = lambda: None
        self._thread = 0

    def once(self, when: str, word: str, function: Callable[[], object]) -> None:
        """Call a function at the next statement of this thread that begins with a word."""
        self._at, self._function, self._thread = (when, word), function, get_ident()

    def __call__(self, when: str, statement: str) -> None:
        if when == "after" and statement == "COMMIT":
            self.commits.append(current_thread())
        if self._at == (when, statement.split(maxsplit=1)[0]) and self._thread == get_ident():
            self._at = None
            self._function()


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path, probe: Probe) -> SqliteEngine:
    if request.param == "memory":
        return MemoryEngine(probe=probe)
    return SqliteEngine(tmp_path / "jobs.db", probe=probe)


@pytest.fixture
def manager(engine: SqliteEngine) -> Iterator[JobManager]:
    with ThreadPool(3) as pool:
        control, io = pool.sequenced(name="control"), pool.sequenced(name="io")
        manager = JobManager(control=control, io=io, execution=pool, engine=engine)
        manager.register("note", lambda: None)
        yield manager
        within(lambda: manager.close(0))


def later(manager: JobManager) -> str:
    """Submit a job that does not become due."""
    return manager.submit("note", delay=HOUR)


def stored(manager: JobManager) -> set[str]:
    return {job.id for job in manager.list(limit=1_000_000)}


@contextmanager
def handled(number: int, handler: Callable[[], object]) -> Iterator[None]:
    """Install a signal handler while the block lasts."""
    before = signal.signal(number, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(number, before)


# -- the path


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="the system has no SIGALRM")
def test_a_plain_submit_commits_on_the_thread_of_its_caller_although_signals_are_handled(
    manager: JobManager, probe: Probe
) -> None:
    with handled(signal.SIGALRM, lambda: None):
        later(manager)
    assert probe.commits == [current_thread()]


def test_changes_of_jobs_commit_on_the_threads_of_their_callers(manager: JobManager, probe: Probe) -> None:
    job = later(manager)
    assert manager.reschedule(job, delay=2 * HOUR)
    assert manager.cancel(job)
    assert probe.commits == [current_thread()] * 3


def test_a_submit_beside_a_running_worker_commits_on_the_thread_of_its_caller(
    manager: JobManager, probe: Probe
) -> None:
    ran = Event()
    manager.register("set", ran.set)
    manager.start()
    job = manager.submit("set")
    assert ran.wait(PATIENCE), "the caller's commit has not woken the worker"
    assert manager.wait(job, PATIENCE) == "COMPLETED"
    assert current_thread() in probe.commits


# -- calls in the middle of a unit


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("word", ["BEGIN", "INSERT", "COMMIT"])
def test_a_signal_handler_that_submits_in_the_middle_is_refused_and_nothing_is_lost(
    manager: JobManager, probe: Probe, when: str, word: str
) -> None:
    refused: list[str] = []

    def submit() -> None:
        try:
            later(manager)
        except EngineUnavailable as error:
            refused.append(error.reason)

    with handled(signal.SIGUSR1, submit):
        probe.once(when, word, lambda: signal.raise_signal(signal.SIGUSR1))
        job = later(manager)
    assert len(refused) == 1
    assert "in the middle of another call" in refused[0]
    assert stored(manager) == {job}
    other = later(manager)
    assert stored(manager) == {job, other}


def test_a_finalizer_that_cancels_in_the_middle_is_refused(manager: JobManager, probe: Probe) -> None:
    first = later(manager)
    refused: list[str] = []

    class Canceling:
        def __del__(self) -> None:
            try:
                manager.cancel(first)
            except EngineUnavailable as error:
                refused.append(error.reason)

    # The last reference goes in the middle of the call, not when the garbage collector runs.
    probe.once("before", "COMMIT", [Canceling()].clear)
    second = later(manager)
    assert len(refused) == 1
    assert stored(manager) == {first, second}
    assert manager.cancel(first)


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)  # close() leaves a store in memory open
def test_a_signal_handler_that_closes_in_the_middle_ends_the_unit(manager: JobManager, probe: Probe) -> None:
    with handled(signal.SIGUSR1, lambda: manager.close(0)):
        probe.once("before", "COMMIT", lambda: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(EngineUnavailable, match="closed the store, in the middle of this call"):
            later(manager)
    with pytest.raises(EngineUnavailable, match="the job manager is closed"):
        later(manager)


# -- interrupts


class Interrupt(BaseException):
    """Raised by a signal handler, as `KeyboardInterrupt` is."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("word", ["BEGIN", "INSERT", "COMMIT"])
def test_an_interrupt_in_the_middle_ends_the_unit_and_the_next_one_begins_clean(
    manager: JobManager, probe: Probe, when: str, word: str
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    probe.once(when, word, interrupt)
    with pytest.raises(KeyboardInterrupt):
        later(manager)
    before = stored(manager)
    assert len(before) == (1 if (when, word) == ("after", "COMMIT") else 0)
    job = Background(lambda: later(manager)).result()
    assert stored(manager) == before | {job}


@pytest.mark.parametrize("method", ["_end_unit", "_roll_back", "_commit"])
def test_the_next_unit_removes_what_an_interrupt_of_the_end_of_a_unit_left(
    manager: JobManager, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A second interrupt may come while the first one is handled."""
    database = engine._database

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(database, method, interrupt)
        if method == "_roll_back":
            patch.setattr(database, "_commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            later(manager)
    job = Background(lambda: later(manager)).result()
    assert job in stored(manager)
    assert Background(lambda: manager.cancel(job)).result()


def test_an_interrupt_after_the_commit_wakes_the_worker_nevertheless(manager: JobManager, probe: Probe) -> None:
    ran = Semaphore(0)
    manager.register("release", ran.release)
    manager.start()

    def interrupt() -> None:
        raise KeyboardInterrupt

    def submit_until_interrupted() -> int:
        for count in range(10_000):
            try:
                manager.submit("release")  # the io thread commits it if the worker uses the store just now
            except KeyboardInterrupt:
                return count
        raise AssertionError("no submit was committed on this thread")

    probe.once("after", "COMMIT", interrupt)
    for _ in range(submit_until_interrupted() + 1):
        assert ran.acquire(timeout=PATIENCE)


class Interrupter:
    """Interrupts the thread that made it, at random instants, while it is armed: a signal handler raises."""

    def __init__(self) -> None:
        self._armed: list[bool] = []
        self._is_armed, self._is_over = Event(), Event()
        self._thread = get_ident()
        self._chance = Random(16)

    def handle(self) -> None:
        """Raise, once for each `arm`."""
        if self._armed:
            self._armed.clear()
            raise Interrupt

    def arm(self) -> None:
        self._is_armed.set()
        self._armed.append(True)

    def disarm(self) -> None:
        self._armed.clear()
        self._is_armed.clear()

    def _send(self) -> None:
        while not self._is_over.is_set():
            self._is_armed.wait(0.1)
            if self._armed:
                self._is_over.wait(self._chance.random() / 1_000)
                signal.pthread_kill(self._thread, signal.SIGUSR1)

    @contextmanager
    def sending(self) -> Iterator[None]:
        with handled(signal.SIGUSR1, self.handle):
            sender = Background(self._send)
            try:
                yield
            finally:
                self._is_over.set()
                sender.result()


# An interrupt may come inside of a finalizer, which no caller can catch. Any other exception there is a failure.
@pytest.mark.filterwarnings(r"ignore:(?s).*\.Interrupt\b:pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_random_instants_lose_nothing(manager: JobManager, engine: SqliteEngine) -> None:
    interrupter = Interrupter()
    returned: list[str] = []
    interrupts = 0
    with interrupter.sending():
        for number in range(amount(100, thorough=9_000)):
            try:
                interrupter.arm()
                for _ in range(100):  # an interrupt may get lost, in a finalizer for example
                    job = later(manager)
                    returned.append(job)
            except Interrupt:
                interrupts += 1
            interrupter.disarm()
            if number % 20 == 0:  # another thread finds no lock held and no open transaction
                returned.append(Background(lambda: later(manager)).result())
    assert interrupts > 0
    assert set(returned) <= stored(manager)
    assert engine._database._unit_thread == 0
    if not isinstance(engine, MemoryEngine):
        with closing(apsw.Connection(engine.path)) as connection:
            assert connection.pragma("integrity_check") == "ok"


# -- forks


def output_of(text: str, *arguments: str) -> str:
    """Run a program to its end, and return its output."""
    with program("-W", "ignore::DeprecationWarning", "-c", text, *arguments) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return output.strip()


PROGRAM = """
import os, signal, sys
from mainspring import EngineUnavailable, ThreadPool
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs import JobManager

def probe(when, statement):
    if at and at[0] == (when, statement.split()[0]):
        at.clear()
        signal.raise_signal(signal.SIGUSR1)

at = []
children = []

def fork(*_):
    child = os.fork()
    if child:
        children.append(child)
    elif not returns:
        os._exit(7)

signal.signal(signal.SIGUSR1, fork)
pool = ThreadPool(3)
path, when, word, returns = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "returns"
engine = MemoryEngine(probe=probe) if path == "memory" else SqliteEngine(path, probe=probe)
manager = JobManager(control=pool.sequenced(), io=pool.sequenced(), execution=pool, engine=engine)
manager.register("note", print)
first = manager.submit("note", delay=3600)
at.append((when, word))
parent = os.getpid()
try:
    outcome = "stored" if manager.submit("note", delay=3600) else ""
except EngineUnavailable as error:
    outcome = "refused" if "the process forked" in error.reason else str(error)
if os.getpid() != parent:
    os._exit({"stored": 8, "refused": 9}.get(outcome, 1))
_, status = os.waitpid(children[0], 0)
manager.submit("note", delay=3600)
print(outcome, os.waitstatus_to_exitcode(status), manager.counts()["PENDING"], flush=True)
manager.close(0)
pool.shutdown()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the system has no user signals")
@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("before BEGIN", "refused 7 2"),
        ("after BEGIN", "refused 7 2"),
        ("after INSERT", "refused 7 2"),
        ("before COMMIT", "refused 7 2"),
        ("after COMMIT", "stored 7 3"),
    ],
)
def test_a_signal_handler_that_forks_in_the_middle_ends_the_unit_and_not_the_process(
    path: Path, at: str, expected: str
) -> None:
    assert output_of(PROGRAM, str(path), *at.split(), "exits") == expected


def test_the_child_of_a_fork_in_the_middle_cannot_use_the_transaction_of_its_parent(path: Path) -> None:
    assert output_of(PROGRAM, str(path), "after", "INSERT", "returns") == "refused 9 2"


def test_a_fork_in_the_middle_of_a_unit_in_memory_changes_nothing() -> None:
    assert output_of(PROGRAM, "memory", "after", "INSERT", "exits") == "stored 7 3"


FORK_DURING_A_READ = """
import os, sys
from mainspring.engines.sqlite import SqliteEngine
from mainspring.errors import EngineUnavailable

engine = SqliteEngine(sys.argv[1])
engine.open(lambda: None)
try:
    with engine._database.reader() as connection:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        connection.execute("SELECT 1")
except EngineUnavailable as error:
    print("forked" in error.reason, sum(engine.counts().values()))
engine.close()
"""


def test_a_fork_in_the_middle_of_a_read_on_the_same_thread_ends_the_read(path: Path) -> None:
    assert output_of(FORK_DURING_A_READ, str(path)) == "True 0"
