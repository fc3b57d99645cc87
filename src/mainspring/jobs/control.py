"""The control layer: a sequence of short calls on memory, run inline in the caller while the sequence is idle.

Invariants
- One call at a time, in the order of arrival, each seeing what those before it did.
- No call waits for io or for handlers: whoever finds the sequence busy waits for calls of microseconds only.
- A call that is made from inside of another one comes after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any, TypeVar, TypeVarTuple

from mainspring.errors import RunnerClosed
from mainspring.runners.runner import TaskRunner
from mainspring.runners.task import TaskFailure, describe_function
from mainspring.runners.traits import DEFAULT_TRAITS
from mainspring.runners.worker import blocking_for

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

SLICE = 64  # calls that one caller makes for others before the runner goes on


class Control:
    """Runs calls one after another, in their callers if possible and on `runner` else."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._turn = Lock()
        self._holder = 0  # the thread that has the turn
        self.calls = 0
        """How many calls were made: it changes with everything that happens here."""

    def post(self, function: Callable[[*Ts], object], *arguments: *Ts) -> None:
        """Make a call, now or as soon as those before it have been made."""
        self._calls.append((function, arguments))
        self._serve()

    def run(self, function: Callable[[*Ts], R], *arguments: *Ts) -> R:
        """Make a call and return its answer."""
        if self._holder == get_ident():
            return function(*arguments)
        answer = _Answer(function, arguments, self._runner)
        self._calls.append((answer.find, ()))
        self._serve()
        return answer.get()  # type: ignore[no-any-return]

    def _serve(self) -> None:
        # Whoever appends looks for the turn afterwards; whoever has the turn looks for calls after giving it back:
        # one of the two sees the other, so no call is left lying.
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
        except RunnerClosed:  # at the end of a shutdown: this caller serves on
            return False
        return True

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.calls += 1
        try:
            function(*arguments)
        except BaseException as error:  # one bad call must not stop the sequence
            self._runner.services.report(
                TaskFailure(
                    error=error,
                    task=describe_function(function),
                    runner=self._runner.name,
                    posted_from=None,
                    traits=DEFAULT_TRAITS,
                )
            )


class _Answer:
    """The answer to a call that somebody waits for."""

    __slots__ = ("_arguments", "_error", "_found", "_function", "_runner", "_value")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], runner: TaskRunner) -> None:
        self._runner = runner  # where the call is made, unless in its caller
        self._function = function
        self._arguments = arguments
        self._value: Any = None
        self._error: BaseException | None = None
        self._found = Lock()
        self._found.acquire()

    def find(self) -> None:
        try:
            self._value = self._function(*self._arguments)
        except BaseException as error:  # raised again where it is waited for
            self._error = error
        finally:
            self._found.release()

    def get(self) -> Any:
        if not self._found.acquire(blocking=False):  # another thread, or the runner, makes the call
            with blocking_for(self._runner):
                self._found.acquire()
        if self._error is not None:
            raise self._error
        return self._value
