"""Handlers in processes: what a job costs that does nothing, and what two processes gain with jobs that compute.

Beside `ProcessPoolExecutor`, spawned as ours are, and beside threads through the same application. All pools are
open all the time, and their processes have started before anything is measured.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep
from typing import Any, TypeAlias

from benchmarks.jobs.process import fresh_store
from benchmarks.measure import Line, Section, rates, times
from mainspring import Mainspring
from mainspring.jobs.handler_options import Execution, HandlerOptions
from mainspring.jobs.handlers import Handler
from mainspring.jobs.processes.messages import AnswerKind, CallRequest
from mainspring.jobs.processes.pool import ProcessPool
from mainspring.jobs.records import Lease
from mainspring.jobs.serializers import JsonSerializer

CALLS, JOBS, SINGLE_JOBS = 2_000, 2_000, 200
COMPUTING = 40
STEPS = 600_000  # about 50 ms
REST_SECONDS = 0.5
SECONDS = 60
GAIN = 1.7
MAX_RESULT = 1_000

Function: TypeAlias = Callable[[int], Any]


def nothing(value: int) -> None:
    """Do nothing, wherever it is called."""


def compute(value: int) -> int:
    """Keep one core busy for a while."""
    for step in range(STEPS):
        value = (value * 31 + step) & 0xFFFF
    return value


def rest(value: int) -> None:  # noqa: ARG001 - called like the others
    """Keep a process, so that the others start, too."""
    sleep(REST_SECONDS)


FUNCTIONS: tuple[Function, ...] = (nothing, compute, rest)


class Way(ABC):
    """One way to have functions run, on so many processes."""

    def __init__(self, processes: int) -> None:
        self.processes = processes

    @abstractmethod
    def one(self, function: Function, value: int) -> None:
        """Run it and wait for its end."""

    @abstractmethod
    def many(self, function: Function, values: Sequence[int]) -> None:
        """Run it for all values, on all processes, and wait for the end of the last."""

    def warm(self) -> None:
        """Let all processes start and import what they need."""
        self.many(rest, range(self.processes))
        self.many(nothing, range(50))

    def rate_of_one(self, function: Function, count: int) -> float:
        began = perf_counter()
        for value in range(count):
            self.one(function, value)
        return count / (perf_counter() - began)

    def rate_of_many(self, function: Function, count: int) -> float:
        began = perf_counter()
        self.many(function, range(count))
        return count / (perf_counter() - began)


class Executor(Way):
    """The standard library's pool."""

    def __init__(self, pool: ProcessPoolExecutor, processes: int) -> None:
        super().__init__(processes)
        self._pool = pool

    def one(self, function: Function, value: int) -> None:
        self._pool.submit(function, value).result(SECONDS)

    def many(self, function: Function, values: Sequence[int]) -> None:
        for future in [self._pool.submit(function, value) for value in values]:
            future.result(SECONDS)


class OurPool(Way):
    """Our pool, which has a thread beside each process; no store, and no worker around it."""

    def __init__(self, pool: ProcessPool) -> None:
        super().__init__(pool.size)
        self._pool = pool
        options = HandlerOptions(execution="process")
        self._handlers = {
            function: Handler(function.__name__, function, options, JsonSerializer()) for function in FUNCTIONS
        }

    def one(self, function: Function, value: int) -> None:
        request = CallRequest.of(self._handlers[function], [_lease(function, value)], max_result=MAX_RESULT)
        (answer,) = self._pool.run(request, on_start=_ignore, on_note=_ignore).answers
        if answer.kind is not AnswerKind.COMPLETED:
            raise RuntimeError(f"{function.__name__} did not complete: {answer.error}")

    def many(self, function: Function, values: Sequence[int]) -> None:
        waiting = iter(values)
        threads = [Thread(target=self._run, args=(function, waiting)) for _ in range(self.processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run(self, function: Function, waiting: Iterator[int]) -> None:
        for value in waiting:
            self.one(function, value)


class Application(Way):
    """Durable jobs, from submit to the last that is settled. Without `in_process`: on threads."""

    def __init__(self, app: Mainspring, processes: int, *, in_process: bool) -> None:
        super().__init__(processes)
        self._app = app
        execution: Execution = "process" if in_process else "thread"
        self._jobs = {
            function: app.job(name=f"{function.__name__} {execution}", execution=execution)(function)
            for function in FUNCTIONS
        }

    def one(self, function: Function, value: int) -> None:
        self._jobs[function].submit(value).wait(SECONDS)

    def many(self, function: Function, values: Sequence[int]) -> None:
        ids = self._jobs[function].submit_many([(value,) for value in values])
        for job_id in ids[-2 * self.processes :]:  # they start in their order
            self._app.handle(job_id).wait(SECONDS)


def _lease(function: Function, value: int) -> Lease:
    return Lease(
        ref=None,
        id=f"job {value}",
        type=function.__name__,
        queue="default",
        due=0,
        payload=b'{"value":%d}' % value,
        codec="json",
        token=1,
        is_started=True,
        failures=0,
        timeouts=0,
        crashes=0,
        interruptions=0,
        priority=1,
    )


def _ignore(_: object) -> None:
    return None


class Ways:
    """All ways on so many processes, open and warm."""

    def __init__(self, stack: ExitStack, processes: int, store: Path) -> None:
        executor = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
        self.executor = Executor(stack.enter_context(executor), processes)
        self.pool = OurPool(stack.enter_context(closing(ProcessPool(processes))))
        app = stack.enter_context(Mainspring(f"sqlite:///{store}", processes=processes))
        self.app = Application(app, processes, in_process=True)
        self.threads = Application(app, processes, in_process=False)
        stack.enter_context(app.running())
        for way in (self.executor, self.pool, self.app, self.threads):
            way.warm()


@contextmanager
def opened() -> Iterator[tuple[Ways, Ways]]:
    """Lend all ways on one process, and on two."""
    with fresh_store() as store, ExitStack() as stack:
        yield Ways(stack, 1, store), Ways(stack, 2, store.with_name("two.db"))


def cost_line(what: str, ours: float, peer: float, peer_name: str) -> Line:
    """Compare rates as what each call takes."""
    return Line(
        what=what,
        ours=f"{1e6 / ours:,.0f} µs",
        peer=f"{1e6 / peer:,.0f} µs {peer_name}",
        ratio=times(ours / peer),
    )


def gain_line(what: str, one: float, two: float, *, bound: float | None = None) -> Line:
    """Say how much faster two processes are than one."""
    gain = two / one
    is_ours = bound is not None
    cells = f"{two:.1f}/s", f"{one:.1f}/s on one"
    return Line(
        what=what,
        ours=cells[0] if is_ours else "",
        peer=cells[1] if is_ours else f"{cells[0]}, {cells[1]}, `ProcessPoolExecutor`",
        ratio=times(gain),
        bound=f"≥ {bound:g} x" if is_ours else "",
        is_met=gain >= bound if bound is not None else None,
    )


def run(rounds: int = 3) -> Section:
    with opened() as (one, two):
        best = rates(
            {
                "pool, one": partial(one.pool.rate_of_one, nothing, CALLS),
                "executor, one": partial(one.executor.rate_of_one, nothing, CALLS),
                "app, one": partial(one.app.rate_of_one, nothing, SINGLE_JOBS),
                "threads, one": partial(one.threads.rate_of_one, nothing, SINGLE_JOBS),
                "pool, many": partial(two.pool.rate_of_many, nothing, CALLS),
                "executor, many": partial(two.executor.rate_of_many, nothing, CALLS),
                "app, many": partial(two.app.rate_of_many, nothing, JOBS),
                "threads, many": partial(two.threads.rate_of_many, nothing, JOBS),
                "app computes on one": partial(one.app.rate_of_many, compute, COMPUTING),
                "app computes on two": partial(two.app.rate_of_many, compute, COMPUTING),
                "executor computes on one": partial(one.executor.rate_of_many, compute, COMPUTING),
                "executor computes on two": partial(two.executor.rate_of_many, compute, COMPUTING),
            },
            rounds,
        )
    executor, threads = "`ProcessPoolExecutor`", "ours, on threads"
    return Section(
        title=f'Jobs: `execution="process"`, best of {rounds} rounds',
        lines=[
            cost_line(
                "our pool alone, one call after another", best["pool, one"], best["executor, one"], executor
            ),
            cost_line("our pool alone, two processes", best["pool, many"], best["executor, many"], executor),
            cost_line("a durable job, submitted and waited for", best["app, one"], best["threads, one"], threads),
            cost_line("a durable job of many, two processes", best["app, many"], best["threads, many"], threads),
            cost_line("a durable job of many, two processes", best["app, many"], best["executor, many"], executor),
            gain_line(
                "durable jobs that compute, two processes",
                best["app computes on one"],
                best["app computes on two"],
                bound=GAIN,
            ),
            gain_line(
                "functions that compute, two processes",
                best["executor computes on one"],
                best["executor computes on two"],
            ),
        ],
        text=f"Calls and jobs that do nothing, {CALLS:,} of each, {SINGLE_JOBS} if waited for one by one; "
        f"{COMPUTING} that compute for about 50 ms. Durable jobs are fsynced (FULL), from the submit to the last "
        "that is settled.",
    )
