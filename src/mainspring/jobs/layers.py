"""The three layers of a job manager (control, io, execution), and the implementation of control.

Control changes state in memory and never waits. Io (`io_layer.py`) makes every call of the engine that writes, on
its own thread or on that of the caller. Execution runs handlers and nothing else.

Invariants of the control layer
- Calls run one at a time, in the order of arrival. Each sees the effects of those before it.
- A caller runs its call on its own thread if no other call runs. No call waits for io or for handlers, so a caller
  that must wait waits for calls of microseconds only.
- A call that is posted inside of another one runs after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any, TypeVar, TypeVarTuple

from msgspec import Struct

from mainspring.clock import Clock
from mainspring.errors import RunnerClosed
from mainspring.jobs.engine import Engine
from mainspring.jobs.io_layer import IoLayer
from mainspring.runners.runner import TaskRunner
from mainspring.runners.task import DEFAULT_TRAITS, TaskFailure, describe_function
from mainspring.runners.worker import blocking_for

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

SLICE = 64  # calls that one thread makes in a row before the runner takes over


class ControlLayer:
    """The control layer: runs calls one after another, on their callers' threads if possible, else on `runner`."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._turn = Lock()
        self._holder = 0  # the thread that runs calls now
        self.calls = 0
        """The number of calls so far. It changes with every change of state, so a reader can detect changes."""

    def post(self, function: Callable[[*Ts], object], *arguments: *Ts) -> None:
        """Run a call now on this thread if no other call runs; otherwise queue it behind the others.

        An exception of the call is reported to the services of the runner, not raised.
        """
        self._calls.append((function, arguments))
        self._serve()

    def run(self, function: Callable[[*Ts], R], *arguments: *Ts) -> R:
        """Run a call after those that are queued, wait for it, and return its result or raise its exception.

        Inside of another call of this layer, it runs at once.
        """
        if self._holder == get_ident():
            return function(*arguments)
        result = _CallResult(function, arguments, self._runner)
        self._calls.append((result.run, ()))
        self._serve()
        return result.get()  # type: ignore[no-any-return]

    def _serve(self) -> None:
        # A thread appends its call first, and then tries to get the turn. The holder of the turn releases it
        # first, and then checks for queued calls. So at least one of the two sees the call, and no call is
        # forgotten.
        served = 0
        while self._calls and self._turn.acquire(blocking=False):
            self._holder = get_ident()
            try:
                while self._calls and served < SLICE:
                    function, arguments = self._calls.popleft()
                    served += 1
                    self._call(function, arguments)
            finally:
                self._holder = 0
                self._turn.release()
            if served >= SLICE:
                if self._calls and self._hand_over():
                    return
                served = 0

    def _hand_over(self) -> bool:
        try:
            self._runner.post(self._serve)
        except RunnerClosed:  # at the end of a shutdown the runner is closed: this caller runs the remaining calls
            return False
        return True

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.calls += 1
        try:
            function(*arguments)
        except BaseException as error:  # an exception in one call must not stop the calls after it
            self._runner.services.report(
                TaskFailure(
                    error=error,
                    task=describe_function(function),
                    runner=self._runner.name,
                    posted_from=None,
                    traits=DEFAULT_TRAITS,
                )
            )


class _CallResult:
    """A queued call of the control layer, for whose result its caller waits."""

    __slots__ = ("_arguments", "_error", "_function", "_is_done", "_runner", "_value")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], runner: TaskRunner) -> None:
        self._runner = runner  # the runner runs the call, unless a caller is faster
        self._function = function
        self._arguments = arguments
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_done = Lock()
        self._is_done.acquire()

    def run(self) -> None:
        try:
            self._value = self._function(*self._arguments)
        except BaseException as error:  # the waiting thread raises it again
            self._error = error
        finally:
            self._is_done.release()

    def get(self) -> Any:
        if not self._is_done.acquire(blocking=False):  # another thread, or the runner, runs the call
            with blocking_for(self._runner):
                self._is_done.acquire()
        if self._error is not None:
            raise self._error
        return self._value


class Layers(Struct, frozen=True):
    """The parts of a job manager that a worker uses: control, io and execution (its layers), engine and clock.

    `execution` runs handlers. `control_runner` runs the calls of `control` that no caller's thread runs.
    """

    engine: Engine
    control: ControlLayer
    control_runner: TaskRunner
    io: IoLayer
    execution: TaskRunner
    clock: Clock
