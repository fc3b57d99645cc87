"""Handlers that a worker runs in child processes. Each reports its process id as progress when it begins."""

from __future__ import annotations

import asyncio
import os
import signal
from threading import Event
from typing import Any

from mainspring.jobs.context import current_batch, current_job


def report_begin() -> None:
    """Report that the handler has begun, and its process id."""
    current_job().progress(os.getpid())


def where() -> int:
    return os.getpid()


def nothing() -> None: ...


def hang() -> None:
    report_begin()
    while True:
        Event().wait()


async def hang_on_a_loop() -> None:
    report_begin()
    await asyncio.Event().wait()


def until_canceled() -> str:
    return _until("cancelled")


def until_stopping() -> str:
    return _until("stopping")


async def until_canceled_on_a_loop() -> str:
    report_begin()
    while not current_job().cancelled:  # noqa: ASYNC110 - as handlers do
        await asyncio.sleep(0)
    return "ended in order"


def _until(flag: str) -> str:
    report_begin()
    pause = Event()
    while not getattr(current_job(), flag):
        pause.wait(0.001)
    return "ended in order"


def fail_after_canceled() -> None:
    _until("cancelled")
    raise TimeoutError("half done")


def die(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.pause()


def die_with_number_seven(numbers: list[int]) -> None:
    if 7 in numbers:
        os._exit(7)


def leave(code: int) -> None:
    os._exit(code)


def fail() -> None:
    raise LookupError("gone")


def double_all(numbers: list[int]) -> list[Any]:
    for job, number in zip(current_batch(), numbers, strict=True):
        job.progress(number)
    return [ValueError("seven") if number == 7 else 2 * number for number in numbers]


def hang_all(numbers: list[int]) -> None:
    current_batch()[0].progress(os.getpid())
    while True:
        Event().wait()
