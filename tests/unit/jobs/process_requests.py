"""Runs requests to child processes in the background and records their progress."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import msgspec
from msgspec.structs import replace

from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler
from mainspring.jobs.processes.child_process import RunningRequest
from mainspring.jobs.processes.messages import AnswerKind, CallRequest, ChildAnswer, ChildReply, ProgressNote
from mainspring.jobs.processes.pool import ProcessPool
from mainspring.jobs.serializers import JsonSerializer
from tests.support import PATIENCE, Background, eventually
from tests.unit.jobs.leases import make_lease


class BackgroundRequest:
    """A request that runs on a thread of its own."""

    def __init__(self, pool: ProcessPool, request: CallRequest) -> None:
        self.notes: list[ProgressNote] = []
        self.has_started = Event()
        self.has_spoken = Event()
        self.running: RunningRequest | None = None
        self._call = Background(lambda: pool.run(request, on_start=self._start, on_note=self._note))

    def _start(self, running: RunningRequest) -> None:
        assert self.running is None, "a request started twice"
        self.running = running
        self.has_started.set()

    def _note(self, note: ProgressNote) -> None:
        self.notes.append(note)
        self.has_spoken.set()

    def started(self) -> RunningRequest:
        assert eventually(lambda: self.has_started.is_set() or self._call.is_done), "the handler has not begun"
        if self.running is None:
            self._call.result()  # raises what kept it from starting
        assert self.running is not None, "the request was answered without a start"
        return self.running

    def reply(self) -> ChildReply:
        return self._call.result()

    def answer(self) -> ChildAnswer:
        (answer,) = self.reply().answers
        return answer

    def result(self) -> Any:
        answer = self.answer()
        assert answer.kind is AnswerKind.COMPLETED, answer.error
        return None if answer.result is None else msgspec.json.decode(answer.result)


def request_for(function: Callable[..., Any], *, max_result: int = 1_000_000, **arguments: Any) -> CallRequest:
    lease = replace(make_lease(msgspec.json.encode(arguments), failures=2), headers={"user": "42"})
    return CallRequest.of(handler_of(function), [lease], max_result=max_result)


def handler_of(function: Callable[..., Any], **options: Any) -> Handler:
    return Handler("shop.handler", function, HandlerOptions(execution="process", **options), JsonSerializer())


def run(pool: ProcessPool, function: Callable[..., Any], **arguments: Any) -> BackgroundRequest:
    return BackgroundRequest(pool, request_for(function, **arguments))


@contextmanager
def watched(pid: int) -> Iterator[Callable[[], None]]:
    """Yield a function that waits for the end of a process."""
    handle = os.pidfd_open(pid)

    def wait_for_end() -> None:
        assert select.select([handle], [], [], PATIENCE)[0], f"process {pid} lives on"

    try:
        yield wait_for_end
    finally:
        os.close(handle)
