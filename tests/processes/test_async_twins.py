"""Every public method that waits for the store has an asynchronous twin, which never blocks the event loop."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree
from threading import Event, get_ident
from typing import Any

import pytest

from mainspring import JobFunction, JobHandle, JobStatus, Mainspring, Queue, Retry
from mainspring.engines.sqlite.connections import FileConnectionPool
from mainspring.jobs.dead_letters import DeadLetters
from mainspring.jobs.recurrence.schedules import Schedules
from tests.programs import run_python
from tests.support import PATIENCE

CLASSES: tuple[type, ...] = (Mainspring, JobHandle, DeadLetters, Schedules, Queue, JobFunction)

WITHOUT_A_TWIN = {
    # decorators, and declarations that a worker stores later
    "Mainspring.job",
    "Mainspring.cron",
    "Mainspring.every",
    "Mainspring.middleware",
    "Mainspring.on_worker_start",
    "Mainspring.on_worker_stop",
    "Mainspring.on_dead_letter",
    "Mainspring.queue",
    # variants and descriptions of a job function
    "JobFunction.after",
    "JobFunction.at",
    "JobFunction.options",
    "JobFunction.bind",
    "JobFunction.follow_up",
    "JobFunction.name",
    "JobFunction.handler",
    "JobFunction.source",
    "JobFunction.chosen",
    "JobHandle.id",
    # settings, and steps before the store is open
    "Mainspring.is_open",
    "Mainspring.off_loop",
    "Mainspring.store_choice",
    "Mainspring.use_store",
    "Mainspring.load_handlers",
    "Mainspring.find_missing_file",
    "Mainspring.child_setup",
    "Mainspring.make_engine",
    "Mainspring.exchange_runtime",
    "Mainspring.forget_after_fork",
    "Mainspring.manager_if_open",
    "Mainspring.asgi",
    # declarations, and what they say
    "Mainspring.http_job",
    "Mainspring.remote_job",
    "Mainspring.callback_types",
    # a step of the start of a worker, and of `put`, which have twins
    "Mainspring.store_declarations",
    "Schedules.store",
    # objects that are made at their first use, whose methods have twins
    "Mainspring.schedules",
    "Mainspring.tokens",
    # `open_manager` is the twin, for the modules of the package
    "Mainspring.manager",
    # a worker in the foreground belongs to the main thread, which has no event loop
    "Mainspring.run",
}

DUE = datetime(2900, 1, 1, tzinfo=UTC)


def members() -> Iterator[tuple[str, Any]]:
    """The public members of the classes, twins excluded."""
    for kind in CLASSES:
        for name, member in inspect.getmembers_static(kind):
            if not name.startswith("_") and not name.endswith("_async"):
                yield f"{kind.__name__}.{name}", member


def twin_of(path: str) -> Any:
    class_name, _, name = path.partition(".")
    kind = next(kind for kind in CLASSES if kind.__name__ == class_name)
    return inspect.getattr_static(kind, f"{name}_async", None)


WAITING = {path: member for path, member in members() if path not in WITHOUT_A_TWIN}


def test_every_method_that_waits_for_the_store_has_a_twin() -> None:
    missing = [path for path in WAITING if twin_of(path) is None]
    advice = "write `name_async = async_twin(name)` below the method, or list it above if it never uses the store"
    assert missing == [], advice
    assert WITHOUT_A_TWIN - {path for path, _ in members()} == set(), "these do not exist any more"


@pytest.mark.parametrize("path", WAITING)
def test_a_twin_has_the_signature_of_its_method(path: str) -> None:
    member = WAITING[path]
    method: Any = member.fget if isinstance(member, property) else member
    own, other = inspect.signature(method), inspect.signature(twin_of(path))
    assert list(other.parameters.values()) == list(own.parameters.values())
    assert other.return_annotation.removeprefix("Async") == own.return_annotation
    assert twin_of(path).__doc__
    assert twin_of(path).__name__ == f"{method.__name__}_async"


# -- another process holds the write lock

HOLDER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.pragma("journal_mode", "wal")  # otherwise SQLite refuses others at once, instead of letting them wait
for line in sys.stdin:
    connection.execute("BEGIN IMMEDIATE" if line == "lock\\n" else "ROLLBACK")
    print("done", flush=True)
"""


class LockHolder:
    """Another process, which holds the write lock of a SQLite file when told so."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        """End the process, which releases the lock."""
        self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0


class Shop:
    """An application on a store with one job of each kind."""

    def __init__(self, folder: Path) -> None:
        self.app = Mainspring(f"sqlite:///{folder / 'jobs.db'}")

        @self.app.job(name="double", retry=Retry(max_attempts=1))
        def double(number: int) -> int:
            if number < 0:
                raise ValueError("too small")
            return 2 * number

        self.double = double

    def handle(self, job_id: str) -> JobHandle[int]:
        return JobHandle(job_id, self.double.handler, self.app)

    def fill(self) -> None:
        with self.app, self.app.running():
            self.double.at(DUE).options(id="later").submit(1)
            self.double.options(id="done").submit(21).wait(PATIENCE)
            self.double.options(id="letter").submit(-1).wait(PATIENCE)
            self.app.schedules.put("yearly", self.double, "0 0 1 1 *", arguments=(1,), start=DUE)
            self.app.schedules.put("paused", self.double, "0 0 1 1 *", arguments=(1,), start=DUE)
            self.app.schedules.pause("paused")


async def all_of(steps: Any) -> list[Any]:
    return [step async for step in steps]


async def run_worker(shop: Shop) -> int:
    async with shop.app.running_async():
        return await (await shop.double.submit_async(4))


async def cancel_and_wait(shop: Shop) -> JobStatus:
    handle = shop.handle("later")
    waiting = asyncio.create_task(handle.wait_async(PATIENCE))
    await handle.cancel_async()
    return await waiting


Call = Callable[[Shop], Awaitable[Any]]

READS: dict[str, tuple[Call, Any]] = {
    "Mainspring.all_queues": (lambda s: s.app.all_queues_async(), ...),
    "Mainspring.get": (lambda s: s.app.get_async("done"), ...),
    "Mainspring.handle": (lambda s: s.app.handle_async("done"), ...),
    "Mainspring.jobs": (lambda s: s.app.jobs_async(limit=2), ...),
    "Mainspring.counts": (lambda s: s.app.counts_async(queue="other"), ...),
    "Mainspring.statistics": (lambda s: s.app.statistics_async(), ...),
    "Mainspring.activity": (lambda s: s.app.activity_async(since=timedelta(hours=1)), ...),
    "Mainspring.explain": (lambda s: s.app.explain_async("later"), ...),
    "Mainspring.backup": (lambda s: s.app.backup_async(f"{s.app.url.removeprefix('sqlite:///')}.copy"), None),
    "Mainspring.workers": (lambda s: s.app.workers_async(), []),
    "Mainspring.callback_pauses": (lambda s: s.app.callback_pauses_async(), []),
    "Mainspring.resume_callbacks": (
        lambda s: s.app.resume_callbacks_async("hooks.example.com"),
        0,
    ),  # without a pause, it writes nothing
    "Mainspring.audit": (lambda s: s.app.audit_async(), []),
    "Mainspring.close": (lambda s: s.app.close_async(), None),
    "JobHandle.info": (lambda s: s.handle("done").info_async(), ...),
    "JobHandle.status": (lambda s: s.handle("done").status_async(), JobStatus.COMPLETED),
    "JobHandle.wait": (lambda s: s.handle("done").wait_async(PATIENCE), JobStatus.COMPLETED),
    "JobHandle.result": (lambda s: s.handle("done").result_async(PATIENCE), 42),
    "JobHandle.__await__": (lambda s: s.handle("done"), 42),
    "JobHandle.explain": (lambda s: s.handle("later").explain_async(), ...),
    "DeadLetters.list": (lambda s: s.app.dead_letters.list_async(), ...),
    "DeadLetters.count": (lambda s: s.app.dead_letters.count_async(), 1),
    "DeadLetters.get": (lambda s: s.app.dead_letters.get_async("letter"), ...),
    "DeadLetters.handlers": (lambda s: s.app.dead_letters.handlers_async(), []),
    "Schedules.get": (lambda s: s.app.schedules.get_async("yearly"), ...),
    "Schedules.list": (lambda s: s.app.schedules.list_async(), ...),
    "Schedules.jobs": (lambda s: s.app.schedules.jobs_async("yearly"), []),
    "Schedules.history": (lambda s: s.app.schedules.history_async("yearly"), []),
    "Queue.is_paused": (lambda s: s.app.queue("default").is_paused_async(), False),
    "Queue.drain": (lambda s: s.app.queue("default").drain_async(PATIENCE), None),
    "Queue.statistics": (lambda s: s.app.queue("default").statistics_async(), ...),
}
WRITES: dict[str, tuple[Call, Any]] = {
    "Mainspring.cancel": (lambda s: s.app.cancel_async("later"), True),
    "Mainspring.reschedule": (lambda s: s.app.reschedule_async("later", delay=3600), True),
    "Mainspring.run_now": (lambda s: s.app.run_now_async("later"), True),
    "Mainspring.retry": (lambda s: s.app.retry_async("letter"), None),
    "Mainspring.events": (lambda s: s.app.events_async(), ...),
    "Mainspring.prune": (lambda s: s.app.prune_async(), 0),
    "Mainspring.remove_redaction": (lambda s: s.app.remove_redaction_async("unheard"), False),
    "Mainspring.running": (run_worker, 8),
    "JobHandle.cancel": (cancel_and_wait, JobStatus.CANCELED),
    "JobHandle.reschedule": (lambda s: s.handle("later").reschedule_async(delay=3600), True),
    "DeadLetters.edit": (lambda s: s.app.dead_letters.edit_async("letter", {"number": 1}), None),
    "DeadLetters.replay": (lambda s: s.app.dead_letters.replay_async("letter"), ...),
    "DeadLetters.replaying": (lambda s: all_of(s.app.dead_letters.replaying_async("letter")), ...),
    "DeadLetters.remove_handler": (lambda s: s.app.dead_letters.remove_handler_async("alert"), False),
    "DeadLetters.purge": (lambda s: s.app.dead_letters.purge_async("letter"), 1),
    "Schedules.put": (lambda s: s.app.schedules.put_async("new", s.double, "0 0 1 1 *", arguments=(1,)), ...),
    "Schedules.remove": (lambda s: s.app.schedules.remove_async("yearly"), None),
    "Schedules.pause": (lambda s: s.app.schedules.pause_async("yearly"), True),
    "Schedules.resume": (lambda s: s.app.schedules.resume_async("paused"), True),
    "Schedules.trigger": (lambda s: s.app.schedules.trigger_async("paused"), ...),
    "Queue.pause": (lambda s: s.app.queue("default").pause_async(), True),
    "Queue.resume": (lambda s: s.app.queue("default").resume_async(), False),
    "JobFunction.submit": (lambda s: s.double.submit_async(3), ...),
    "JobFunction.submit_many": (lambda s: s.double.submit_many_async([(3,)] * 3), ...),
}


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    Shop(folder).fill()
    return folder


@pytest.fixture
def folder(filled_store: Path, tmp_path: Path) -> Path:
    return copytree(filled_store, tmp_path / "store")


@pytest.fixture
def holder(folder: Path) -> Iterator[LockHolder]:
    holder = LockHolder(folder / "jobs.db")
    try:
        yield holder
    finally:
        holder.end()


class ConnectionWatch:
    """Records which threads use a connection to a SQLite file, and when the first one begins to write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: set[int] = set()
        self.has_written = Event()
        for name in ("connect", "reader", "writer", "open_writer", "dedicated", "temporary"):
            monkeypatch.setattr(FileConnectionPool, name, self._watched(name, getattr(FileConnectionPool, name)))

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.threads.add(get_ident())
            if name in ("writer", "open_writer", "temporary"):
                self.has_written.set()
            return method(*arguments)

        return call


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> ConnectionWatch:
    return ConnectionWatch(monkeypatch)


def test_each_twin_is_called_below() -> None:
    assert (READS.keys() | WRITES.keys()) - {"JobHandle.__await__"} == WAITING.keys()


@pytest.mark.parametrize("path", READS)
def test_a_read_answers_while_another_process_holds_the_write_lock(
    path: str, folder: Path, holder: LockHolder, watch: ConnectionWatch
) -> None:
    call, expected = READS[path]
    shop = Shop(folder)

    async def scenario() -> object:
        async with asyncio.timeout(PATIENCE):
            return await call(shop)

    holder.tell("lock")
    try:
        result = asyncio.run(scenario())
        assert expected is ... or result == expected
        assert get_ident() not in watch.threads
    finally:
        holder.tell("release")
        shop.app.close()


@pytest.mark.parametrize("path", WRITES)
def test_a_write_that_waits_for_another_process_leaves_the_loop_free(
    path: str, folder: Path, holder: LockHolder, watch: ConnectionWatch
) -> None:
    call, expected = WRITES[path]
    shop = Shop(folder)

    async def scenario() -> object:
        holder.tell("lock")
        waiting = asyncio.ensure_future(call(shop))
        await asyncio.to_thread(watch.has_written.wait, PATIENCE)
        assert await shop.app.counts_async()  # a read does not wait for the write
        assert not waiting.done()
        holder.tell("release")  # the loop does this, so it is free
        async with asyncio.timeout(PATIENCE):
            return await waiting

    result = asyncio.run(scenario())
    assert expected is ... or result == expected
    assert get_ident() not in watch.threads
    shop.app.close()


def test_the_first_call_opens_a_new_store_without_blocking_the_loop(
    tmp_path: Path, watch: ConnectionWatch
) -> None:
    holder = LockHolder(tmp_path / "jobs.db")
    shop = Shop(tmp_path)

    async def scenario() -> int:
        holder.tell("lock")  # the tables do not exist yet: the first call waits for the lock to create them
        waiting = asyncio.ensure_future(shop.double.at(DUE).submit_async(1))
        await asyncio.to_thread(watch.has_written.wait, PATIENCE)
        assert not waiting.done()
        holder.tell("release")
        await waiting
        return (await shop.app.counts_async())["PENDING"]

    try:
        with shop.app:
            assert asyncio.run(scenario()) == 1
        assert get_ident() not in watch.threads
    finally:
        holder.end()


FORKING = """
import asyncio, os, sys
from mainspring import Mainspring

app = Mainspring(sys.argv[1])

@app.job(name="double")
def double(number: int) -> int: ...

async def submit(name: str) -> None:
    await double.options(id=name).after(3600).submit_async(1)
    print(name, sorted(job.id for job in await app.jobs_async()), flush=True)

asyncio.run(submit("parent"))
if os.fork() == 0:
    asyncio.run(submit("the child"))
    app.close()
    os._exit(0)
print(os.wait()[1], flush=True)
asyncio.run(submit("the parent again"))
"""


def test_a_forked_child_has_threads_of_its_own(tmp_path: Path) -> None:
    run = run_python("-W", "ignore", "-c", FORKING, f"sqlite:///{tmp_path}/jobs.db")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == [
        "parent ['parent']",
        "the child ['parent', 'the child']",
        "0",
        "the parent again ['parent', 'the child', 'the parent again']",
    ]
