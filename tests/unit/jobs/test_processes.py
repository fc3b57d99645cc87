"""Handlers in child processes: how they are found, what they know, what their results and errors become."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mainspring import Mainspring
from mainspring.jobs.processes import locate
from mainspring.jobs.processes.child_process import CannotStart
from mainspring.jobs.processes.messages import (
    AnswerKind,
    CallRequest,
    ChildAnswer,
    ChildReply,
    ProgressNote,
    decode_from_child,
    decode_request,
    encode,
)
from mainspring.jobs.processes.pool import ProcessPool
from tests.unit.jobs import process_handlers as handlers
from tests.unit.jobs.leases import make_lease
from tests.unit.jobs.process_requests import BackgroundRequest, handler_of, request_for, run


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    """Children that no test kills."""
    pool = ProcessPool(2)
    yield pool
    pool.close()


@pytest.fixture
def own_pool() -> Iterator[ProcessPool]:
    """Children for one test."""
    pool = ProcessPool(2)
    yield pool
    pool.close(0)


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)


# -- what handlers return and raise


def test_a_handler_runs_in_another_process_and_its_result_comes_back(pool: ProcessPool) -> None:
    assert run(pool, handlers.square, number=7).result() == 49
    assert run(pool, handlers.process_id).result() != os.getpid()


def test_a_child_is_kept_for_the_next_request(own_pool: ProcessPool) -> None:
    assert len({run(own_pool, handlers.process_id).result() for _ in range(3)}) == 1


def test_the_decorators_job_is_found_and_its_function_called(pool: ProcessPool) -> None:
    for job in (handlers.decorated, handlers.wrapped):
        handler = handlers.app.registry.get("wrapped" if job is handlers.wrapped else job.name)
        request = CallRequest.of(handler, [make_lease(b'{"number": 3}')], max_result=100)
        assert BackgroundRequest(pool, request).result() == -3


def test_a_static_method_is_found_by_its_qualified_name(pool: ProcessPool) -> None:
    assert run(pool, handlers.Shop.count, goods=["a", "b"]).result() == 2


def test_a_coroutine_function_runs_on_a_loop_of_its_own(pool: ProcessPool) -> None:
    assert run(pool, handlers.add_slowly, one=1, other=2).result() == 3


def test_a_handler_knows_its_job(pool: ProcessPool) -> None:
    assert run(pool, handlers.introduce_itself).result() == {
        "id": "order-42",
        "attempt": 3,
        "due": "2027-01-15T08:00:00Z",
        "queue": "orders",
        "token": 3,
        "headers": {"user": "42"},
        "cancelled": False,
    }


def test_progress_arrives_in_order(pool: ProcessPool) -> None:
    attempt = run(pool, handlers.report, steps=3)
    attempt.reply()
    assert attempt.notes == [ProgressNote(step, 3, f"step {step}") for step in (1, 2, 3)]


def test_arguments_are_checked_again_and_nothing_is_called(pool: ProcessPool) -> None:
    attempt = run(pool, handlers.square, number="seven")
    assert "InvalidArguments: shop.handler, parameter 'number'" in (attempt.answer().error or "")
    assert not attempt.has_started.is_set()


def test_a_result_is_encoded_as_the_arguments_were(pool: ProcessPool) -> None:
    lease = make_lease(msgspec.msgpack.encode({"number": 4}), codec="msgpack")
    request = CallRequest.of(handler_of(handlers.square), [lease], max_result=100)
    assert BackgroundRequest(pool, request).answer().result == b"\x10"


def test_a_huge_result_arrives_whole(pool: ProcessPool) -> None:
    length = 5_000_000
    assert run(pool, handlers.make_text, max_result=2 * length, length=length).result() == "x" * length


def test_huge_arguments_arrive_whole(own_pool: ProcessPool) -> None:
    assert run(own_pool, handlers.Shop.count, goods=["x" * 1_000] * 3_000).result() == 3_000


def test_a_result_that_is_not_stored_does_not_travel(pool: ProcessPool) -> None:
    handler = handler_of(handlers.make_object)
    request = CallRequest.of(handler, [make_lease()], max_result=100, keep_result=False)
    assert BackgroundRequest(pool, request).result() is None


@pytest.mark.parametrize(
    ("function", "arguments", "problem"),
    [(handlers.make_object, {}, "a object cannot be stored"), (handlers.make_text, {"length": 200}, "is 100")],
)
def test_a_result_that_cannot_be_stored_is_hopeless(
    pool: ProcessPool, function: Callable[..., Any], arguments: dict[str, Any], problem: str
) -> None:
    answer = run(pool, function, max_result=100, **arguments).answer()
    assert answer.kind is AnswerKind.NOT_RETRYABLE
    assert "shop.handler has run, but its result cannot be stored" in (answer.error or "")
    assert problem in (answer.error or "")


@pytest.mark.parametrize(
    ("function", "kind", "delay", "error"),
    [
        (handlers.snooze, AnswerKind.SNOOZED, 90_000_000, None),
        (handlers.cancel, AnswerKind.CANCELED, 0, "sold out"),
        (handlers.retry_later, AnswerKind.RETRY_LATER, 5_000_000, "RetryLater: retry after 5"),
    ],
)
def test_signals_of_a_handler_come_back(
    pool: ProcessPool, function: Callable[..., Any], kind: AnswerKind, delay: int, error: str | None
) -> None:
    answer = run(pool, function).answer()
    assert (answer.kind, answer.delay, answer.error) == (kind, delay, error)


def test_an_error_says_what_in_its_first_line_and_where_below(pool: ProcessPool) -> None:
    first, *below = (run(pool, handlers.fail).answer().error or "").splitlines()
    assert first == "ShopClosed: it is late"
    assert "process_handlers.py" in below[0]
    assert "raise ShopClosed" in below[1]


def test_an_error_is_recognised_by_its_class_and_its_bases(pool: ProcessPool) -> None:
    answer = run(pool, handlers.fail).answer()
    assert answer.is_one_of((handlers.ShopClosed,))
    assert answer.is_one_of((ValueError, LookupError))
    assert not answer.is_one_of((ValueError, KeyError))
    assert not answer.is_one_of(())


def test_an_error_that_cannot_be_described_is_an_answer(pool: ProcessPool) -> None:
    answer = run(pool, handlers.fail_unspeakably).answer()
    assert answer.kind is AnswerKind.FAILED
    assert (answer.error or "").startswith("Unspeakable: (its message cannot be read)")


@pytest.mark.parametrize(
    ("function", "line"),
    [(handlers.exit_politely, "SystemExit: enough"), (handlers.interrupt_itself, "KeyboardInterrupt")],
)
def test_exiting_ends_the_attempt_and_not_the_child(
    own_pool: ProcessPool, function: Callable[..., Any], line: str
) -> None:
    before = run(own_pool, handlers.process_id).result()
    answer = run(own_pool, function).answer()
    assert (answer.kind, (answer.error or "").splitlines()[0]) == (AnswerKind.FAILED, line)
    assert run(own_pool, handlers.process_id).result() == before


def test_a_batch_is_one_call_with_an_answer_for_each_job(pool: ProcessPool) -> None:
    payloads = [b'{"numbers": 1}', b'{"numbers": 7}', b'{"numbers": "x"}', b'{"numbers": 4}']
    handler = handler_of(handlers.double_all, batch=10)
    request = CallRequest.of(handler, [make_lease(p) for p in payloads], max_result=100, is_batch=True)
    attempt = BackgroundRequest(pool, request)
    good, seven, bad, last = attempt.reply().answers
    assert (good.result, last.result) == (b"2", b"8")
    assert (seven.kind, seven.error) == (AnswerKind.FAILED, "ValueError: seven")
    assert "InvalidArguments" in (bad.error or "")
    assert [(note.done, note.place) for note in attempt.notes] == [(1, 0), (7, 1), (4, 3)]


def test_what_a_batch_handler_raises_is_charged_to_those_it_was_called_for(pool: ProcessPool) -> None:
    handler = handler_of(handlers.refuse_all, batch=10)
    leases = [make_lease(b'{"numbers": 1}'), make_lease(b'{"numbers": "x"}')]
    called, bad = (
        BackgroundRequest(pool, CallRequest.of(handler, leases, max_result=100, is_batch=True)).reply().answers
    )
    assert (called.error or "").startswith("ValueError: none of 1")
    assert "InvalidArguments" in (bad.error or "")


def test_an_error_of_a_coroutine_shows_its_own_frames_only(pool: ProcessPool) -> None:
    first, where, *_ = (run(pool, handlers.fail_slowly).answer().error or "").splitlines()
    assert first == "ShopClosed: it is late"
    assert "process_handlers.py" in where


# -- never pickle


def test_arguments_are_never_unpickled(pool: ProcessPool, tmp_path: Path) -> None:
    trap = tmp_path / "touched"
    request = CallRequest.of(
        handler_of(handlers.square), [make_lease(pickle.dumps(handlers.Touch(str(trap))))], max_result=100
    )
    assert BackgroundRequest(pool, request).answer().kind is AnswerKind.NOT_RETRYABLE
    assert run(pool, handlers.fail_touching, path=str(trap)).answer().kind is AnswerKind.FAILED
    assert not trap.exists()


def test_messages_are_msgpack() -> None:
    request = request_for(handlers.square, number=7)
    assert decode_request(encode(request)) == request
    reply = ChildReply([ChildAnswer(AnswerKind.COMPLETED, b"49")], 1)
    assert decode_from_child(encode(reply)) == reply
    with pytest.raises(msgspec.DecodeError):
        decode_from_child(pickle.dumps(reply))


def test_what_only_the_engine_understands_does_not_travel() -> None:
    (lease,) = request_for(handlers.square, number=7).leases
    assert lease.ref is None


# -- what cannot be imported


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], CallRequest]:
    """Make a module that only children import, and a request for its handler."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str) -> CallRequest:
        (tmp_path / "troublesome.py").write_text(source)
        return replace(request_for(handlers.process_id), module="troublesome", qualname="handler")

    return make


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import missing_module", "cannot import its module 'troublesome': No module named 'missing_module'"),
        ("handler = 3", "module 'troublesome' has no function 'handler'"),
        ("other = 3", "module 'troublesome' has no function 'handler'"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_handler_that_cannot_be_imported_is_a_failure_and_no_crash(
    own_pool: ProcessPool, module: Callable[[str], CallRequest], source: str, error: str
) -> None:
    answer = BackgroundRequest(own_pool, module(source)).answer()
    assert answer.kind is AnswerKind.FAILED
    assert error in (answer.error or "")


def test_a_module_that_kills_its_child_never_starts(
    own_pool: ProcessPool, module: Callable[[str], CallRequest]
) -> None:
    run(own_pool, handlers.process_id).reply()
    with pytest.raises(CannotStart, match="exit code 9 before the handler began"):
        BackgroundRequest(own_pool, module("import os; os._exit(9)")).reply()


def test_a_module_that_hangs_is_given_up(module: Callable[[str], CallRequest], fifo: str) -> None:
    pool = ProcessPool(1, start_timeout=1)
    with pytest.raises(CannotStart, match="importing the application or troublesome may hang or take too long"):
        BackgroundRequest(pool, module(f"open({fifo!r}).read()")).reply()
    pool.close(0)


# -- what may be registered


def test_a_function_is_located_by_module_and_qualified_name() -> None:
    assert locate(handlers.square) == (handlers.__name__, "square")
    assert locate(handlers.Shop.count) == (handlers.__name__, "Shop.count")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda: None, "it is a lambda"),
        (partial(handlers.square, 1), "it is a partial"),
        (handlers.Shop().open, "a method of an object"),
        (handlers.Touch("x"), "it is a Touch, not a function"),
    ],
)
def test_what_a_child_could_not_import_is_refused(function: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem) as refusal:
        locate(function)
    assert "define it with def at the top level of a module" in str(refusal.value)


def test_a_function_inside_of_a_function_is_refused_by_the_decorator() -> None:
    def inner() -> None: ...

    with pytest.raises(TypeError, match="it is defined inside of another function"):
        Mainspring("memory://").job(execution="process")(inner)
