"""Handlers for tests of child processes, which import this module by its name.

Those that wait report their process id as progress when they begin.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from functools import wraps
from pathlib import Path
from threading import Event, Lock
from typing import Any

from mainspring import Cancel, Mainspring, Retry, Snooze, current_job
from mainspring.jobs.context import current_batch

app = Mainspring("memory://")

hoard: list[bytes] = []


def square(number: int) -> int:
    return number * number


def process_id() -> int:
    return os.getpid()


def wait_for(path: str) -> int:
    """Wait until the test writes to a FIFO."""
    Path(path).read_bytes()
    return os.getpid()


def meet(mine: str, other: str, *, goes_first: bool) -> int:
    """Return when another handler runs at the same time: neither can pass the FIFOs alone."""
    if goes_first:
        Path(mine).write_bytes(b"here")
        Path(other).read_bytes()
    else:
        Path(other).read_bytes()
        Path(mine).write_bytes(b"here, too")
    return os.getpid()


def spin() -> None:
    """Be busy in Python for ever."""
    while True:
        pass


def leave(code: int) -> None:
    os._exit(code)


def raise_signal(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.pause()


def follow_a_null_pointer() -> None:
    ctypes.string_at(0)


def exit_politely() -> None:
    sys.exit("enough")


def interrupt_itself() -> None:
    raise KeyboardInterrupt


def keep(megabytes: int) -> int:
    hoard.append(bytes(range(256)) * 4096 * megabytes)
    return os.getpid()


def report_begin() -> None:
    """Report that the handler has begun, and its process id."""
    current_job().progress(os.getpid())


def hang() -> None:
    report_begin()
    while True:
        Event().wait()


def hang_all(numbers: list[int]) -> None:
    current_batch()[0].progress(os.getpid())
    while True:
        Event().wait()


async def hang_on_a_loop() -> None:
    report_begin()
    await asyncio.Event().wait()


def until_canceled() -> dict[str, bool]:
    return _until("cancelled")


def until_stopping() -> dict[str, bool]:
    return _until("stopping")


async def until_canceled_on_a_loop() -> dict[str, bool]:
    report_begin()
    while not current_job().cancelled:  # noqa: ASYNC110 - as handlers do
        await asyncio.sleep(0)
    return _flags()


def _until(flag: str) -> dict[str, bool]:
    report_begin()
    pause = Event()
    while not getattr(current_job(), flag):
        pause.wait(0.001)
    return _flags()


def _flags() -> dict[str, bool]:
    return {"stopping": current_job().stopping, "cancelled": current_job().cancelled}


def fail_after_canceled() -> None:
    _until("cancelled")
    raise TimeoutError("half done")


def leave_with_number_seven(numbers: list[int]) -> None:
    if 7 in numbers:
        os._exit(7)


async def fail_slowly() -> None:
    await asyncio.sleep(0)
    fail()


async def add_slowly(one: int, other: int) -> int:
    await asyncio.sleep(0)
    assert current_job().id
    return one + other


def introduce_itself() -> dict[str, Any]:
    job = current_job()
    return {
        "id": job.id,
        "attempt": job.attempt,
        "due": job.due,
        "queue": job.queue,
        "token": job.fencing_token,
        "headers": dict(job.headers),
        "cancelled": job.cancelled,
    }


def report(steps: int) -> None:
    for step in range(steps):
        current_job().progress(step + 1, steps, f"step {step + 1}")


def double_all(numbers: list[int]) -> list[Any]:
    for number, job in zip(numbers, current_batch(), strict=True):
        job.progress(number)
    return [ValueError("seven") if number == 7 else 2 * number for number in numbers]


def refuse_all(numbers: list[int]) -> None:
    raise ValueError(f"none of {len(numbers)}")


def snooze() -> None:
    try:
        raise Snooze(90)
    except Exception:  # does not catch it
        raise AssertionError from None


def cancel() -> None:
    raise Cancel("sold out")


def retry_later() -> None:
    raise Retry.Later(5)


class ShopClosed(LookupError):
    """Carries what cannot be pickled, and cannot be made again from its arguments."""

    def __init__(self, *, reason: str) -> None:
        self.lock = Lock()
        super().__init__(reason)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def fail() -> None:
    raise ShopClosed(reason="it is late")


def fail_unspeakably() -> None:
    raise Unspeakable


def make_text(length: int) -> str:
    return "x" * length


def make_object() -> object:
    return object()


def start_another(path: str) -> None:
    """Start a program, say which, and wait for it."""
    with subprocess.Popen([sys.executable, "-c", f"open({path!r}).read()"]) as program:
        current_job().progress(program.pid)


def fork_and_leave(path: str) -> None:
    if os.fork() == 0:
        Path(path).read_bytes()
    os._exit(3)


class Touch:
    """Touches a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


class TouchingError(Touch, Exception):
    pass


def fail_touching(path: str) -> None:
    raise TouchingError(path)


@app.job(execution="process")
def decorated(number: int) -> int:
    return -number


def _logged(function: Any) -> Any:
    @wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return wrapper


@_logged
@app.job(execution="process", name="wrapped")
def wrapped(number: int) -> int:
    return -number


class Shop:
    @staticmethod
    def count(goods: list[str]) -> int:
        return len(goods)

    def open(self) -> None:
        """Cannot be reached from another process."""


@app.job(execution="process")
def wrong_result() -> int:
    return "seven"  # type: ignore[return-value]


@app.job(execution="process")
def missing_result() -> int:
    return None  # type: ignore[return-value]


@app.job(execution="process")
def right_result() -> int:
    return 7
