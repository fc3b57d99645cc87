"""Whatever a handler returns or raises becomes an outcome, with the cause that it is charged to."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Cancel, InvalidArguments, Retry, Snooze, Suspend, current_job
from mainspring.jobs.records import Cause, Lease, Outcome, OutcomeKind
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.worker.error_text import MAX_ERROR_LENGTH
from mainspring.jobs.worker.invoker import HandlerInvoker
from mainspring.jobs.worker.lease_table import LeasedJob
from tests.unit.jobs.leases import make_lease, make_leased_job

NOW = 1_900_000_000_000_000
SECOND = 1_000_000

Run = Callable[..., Outcome]


@pytest.fixture
def invoker() -> HandlerInvoker:
    return HandlerInvoker(JsonSerializer(), lambda: NOW, max_result=1_000)


def plainly(invoker: HandlerInvoker, job: LeasedJob) -> Outcome:
    return invoker.invoke(job)


def on_a_loop(invoker: HandlerInvoker, job: LeasedJob) -> Outcome:
    plain = job.handler.function

    async def function(*args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return plain(*args, **options)

    job.handler.function = function
    return asyncio.run(invoker.invoke_async(job))


@pytest.fixture(params=[plainly, on_a_loop], ids=["def", "async def"])
def run(request: pytest.FixtureRequest, invoker: HandlerInvoker) -> Run:
    """Runs a function as a job, on a thread or on an event loop."""

    def run(function: Callable[..., Any], lease: Lease | None = None, **options: Any) -> Outcome:
        outcome: Outcome = request.param(invoker, make_leased_job(function, lease, **options))
        return outcome

    return run


def raising(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


def test_a_handler_that_returns_nothing_has_completed(run: Run) -> None:
    outcome = run(lambda: None)
    assert (outcome.kind, outcome.result, outcome.error, outcome.cause) == (
        OutcomeKind.COMPLETED,
        None,
        None,
        None,
    )


def test_what_a_handler_returns_is_its_result(run: Run) -> None:
    assert run(lambda: {"total": 3}).result == b'{"total":3}'


@pytest.mark.parametrize("value", [0, "", False, [], {}], ids=repr)
def test_an_empty_result_is_a_result(run: Run, value: object) -> None:
    assert run(lambda: value).result == JsonSerializer().encode(value)


def test_a_result_that_is_not_wanted_is_not_kept(run: Run) -> None:
    outcome = run(object, keep_result=False)
    assert (outcome.kind, outcome.result) == (OutcomeKind.COMPLETED, None)


def test_a_result_is_encoded_as_the_arguments_were(invoker: HandlerInvoker) -> None:
    lease = make_lease(b"\x80", codec="msgpack")
    assert invoker.invoke(make_leased_job(lambda: [1], lease)).result == b"\x91\x01"


@pytest.mark.parametrize("value", [object(), {"a": object()}, 1j], ids=["object", "inside", "complex"])
def test_a_result_that_cannot_be_stored_is_a_dead_letter_and_is_not_run_again(run: Run, value: object) -> None:
    outcome = run(lambda: value, retry=Retry(max_attempts=6, jitter=0))
    assert (outcome.kind, outcome.cause, outcome.due) == (OutcomeKind.FAILED, Cause.FAILURE, None)
    assert "has run, but its result cannot be stored" in (outcome.error or "")
    assert "keep_result=False" in (outcome.error or "")


def test_an_endless_result_is_a_dead_letter(run: Run) -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert run(lambda: endless).kind is OutcomeKind.FAILED


def test_a_result_that_is_too_large_is_a_dead_letter_that_names_the_limit(run: Run) -> None:
    outcome = run(lambda: "x" * 2_000)
    assert outcome.kind is OutcomeKind.FAILED
    assert "the limit is 1,000" in (outcome.error or "")


def test_a_failure_runs_again_after_the_wait_of_its_policy(run: Run) -> None:
    outcome = run(
        raising(ValueError("no")), make_lease(failures=1), retry=Retry(base=2, factor=3, max_delay=60, jitter=0)
    )
    assert (outcome.kind, outcome.cause, outcome.due) == (OutcomeKind.RETRY, Cause.FAILURE, NOW + 6 * SECOND)


def test_an_error_says_what_in_its_first_line_and_where_below(run: Run) -> None:
    first, *below = (run(raising(ValueError("no"))).error or "").splitlines()
    assert first == "ValueError: no"
    assert "raise error" in below[-1] or "raise error" in below[-2]


def test_an_error_shows_no_frame_of_mainspring(invoker: HandlerInvoker) -> None:
    assert "invoker.py" not in (invoker.invoke(make_leased_job(raising(ValueError("no")))).error or "").replace(
        "test_invoker.py", ""
    )


@pytest.mark.parametrize("error", [KeyError(), StopIteration(), AssertionError()], ids=repr)
def test_an_error_without_a_message_is_named_by_its_class(invoker: HandlerInvoker, error: Exception) -> None:
    outcome = invoker.invoke(make_leased_job(raising(error)))
    assert (outcome.error or "").splitlines()[0] == type(error).__name__


def chained() -> None:
    """Raise an error with a cause, which was raised while another one was handled, and with a note."""
    try:
        try:
            raise KeyError("card")
        except KeyError:
            raise OSError("no connection")  # noqa: B904 - the context is what is tested
    except OSError as error:
        late = RuntimeError("payment failed")
        late.add_note("order 42")
        raise late from error


def test_an_error_keeps_its_notes_its_cause_and_its_context(run: Run) -> None:
    lines = (run(chained).error or "").splitlines()
    told = [line for line in lines if not line.startswith("    ") and not line.startswith('  File "')]
    assert told == [
        "RuntimeError: payment failed",
        "  note: order 42",
        "caused by: OSError: no connection",
        "raised while this was handled: KeyError: 'card'",
    ]
    assert sum("in chained" in line for line in lines) == 3


def test_every_error_of_a_group_is_kept(run: Run) -> None:
    group = ExceptionGroup("two", [ValueError("a"), ExceptionGroup("more", [OSError("b")])])
    error = run(raising(group)).error or ""
    for line in (
        "exception 1 of 2: ValueError: a",
        "exception 2 of 2: ExceptionGroup: more",
        "1 of 1: OSError: b",
    ):
        assert line in error


def test_an_error_that_is_its_own_cause_ends(run: Run) -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert (run(raising(first)).error or "").count("ValueError") == 2


def test_a_very_long_error_is_cut(run: Run) -> None:
    assert len(run(raising(ValueError("x" * 100_000))).error or "") <= MAX_ERROR_LENGTH


def test_an_error_that_is_no_text_can_be_stored_all_the_same(run: Run) -> None:
    error = run(raising(ValueError("\ud800"))).error or ""
    assert error.encode().startswith(b"ValueError: \\ud800")


def test_an_error_that_cannot_even_be_printed_is_an_outcome(run: Run) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    outcome = run(raising(Rude()))
    assert outcome.kind is OutcomeKind.RETRY
    assert (outcome.error or "").startswith("Rude")


@pytest.mark.parametrize(("failures", "timeouts"), [(5, 0), (3, 2), (0, 5), (9, 9)])
def test_the_last_attempt_that_fails_is_a_dead_letter(run: Run, failures: int, timeouts: int) -> None:
    lease = make_lease(failures=failures, timeouts=timeouts)
    outcome = run(raising(ValueError("no")), lease, retry=Retry(max_attempts=6))
    assert (outcome.kind, outcome.cause, outcome.due) == (OutcomeKind.FAILED, Cause.FAILURE, None)


def test_crashes_and_deploys_use_up_no_attempts_of_the_policy(run: Run) -> None:
    assert run(raising(ValueError("no")), make_lease(failures=4, crashes=2)).kind is OutcomeKind.RETRY


def test_an_error_that_no_repetition_cures_is_a_dead_letter_at_once(run: Run) -> None:
    policy = Retry(max_attempts=6, give_up_on=(LookupError,), jitter=0)
    assert run(raising(KeyError("gone")), retry=policy).kind is OutcomeKind.FAILED
    assert run(raising(ValueError("busy")), retry=policy).kind is OutcomeKind.RETRY


def test_only_the_errors_of_on_are_retried_and_give_up_on_goes_before_it(run: Run) -> None:
    policy = Retry(on=(OSError,), give_up_on=(FileNotFoundError,))
    assert run(raising(ConnectionError("busy")), retry=policy).kind is OutcomeKind.RETRY
    assert run(raising(FileNotFoundError("gone")), retry=policy).kind is OutcomeKind.FAILED
    assert run(raising(ValueError("no")), retry=policy).kind is OutcomeKind.FAILED
    assert run(raising(Retry.Later(5)), retry=policy).kind is OutcomeKind.RETRY


def test_on_does_not_apply_to_a_timeout(invoker: HandlerInvoker) -> None:
    job = make_leased_job(raising(ValueError("stopped")), retry=Retry(on=(OSError,)))
    job.timed_out_after = SECOND
    assert invoker.invoke(job).kind is OutcomeKind.RETRY


@pytest.mark.parametrize("wrong", [ValueError, [OSError], ("OSError",), (1,)], ids=repr)
def test_on_is_a_tuple_of_exception_classes(wrong: Any) -> None:
    with pytest.raises(TypeError, match="on must be a tuple of exception classes, got"):
        Retry(on=wrong)


@pytest.mark.parametrize("delay", [5, 0, timedelta(seconds=5)], ids=repr)
def test_a_snooze_runs_later_and_is_charged_to_nothing(run: Run, delay: timedelta | float) -> None:
    outcome = run(raising(Snooze(delay)), make_lease(failures=5))
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    assert (outcome.kind, outcome.cause, outcome.error) == (OutcomeKind.SNOOZED, None, None)
    assert outcome.due == NOW + seconds * SECOND


def test_a_cancel_ends_the_job_with_its_reason(run: Run) -> None:
    outcome = run(raising(Cancel("sold out")))
    assert (outcome.kind, outcome.error, outcome.cause) == (OutcomeKind.CANCELED, "sold out", None)


@pytest.mark.parametrize(
    ("suspension", "kind"),
    [
        (Snooze(5), OutcomeKind.SNOOZED),
        (Cancel("sold out"), OutcomeKind.CANCELED),
        (Retry.Later(5), OutcomeKind.RETRY),
    ],
    ids=["Snooze", "Cancel", "Retry.Later"],
)
def test_a_handler_that_catches_all_exceptions_does_not_swallow_a_suspension(
    run: Run, suspension: Suspend, kind: OutcomeKind
) -> None:
    def handler() -> str:
        try:
            raise suspension
        except Exception:
            return "went on"

    assert run(handler).kind is kind


def test_a_handler_can_catch_a_suspension_by_its_name(run: Run) -> None:
    def handler() -> str:
        try:
            raise Snooze(5)
        except Snooze:
            return "went on"

    assert run(handler).kind is OutcomeKind.COMPLETED


def test_executors_and_tasks_pass_a_suspension_on(run: Run) -> None:
    def handler() -> None:
        with ThreadPoolExecutor(1) as executor:
            first, second = executor.submit(raising(Snooze(5))), executor.submit(raising(Snooze(5)))
            assert isinstance(first.exception(), Snooze)  # the thread has outlived it
            second.result()

    assert run(handler).kind is OutcomeKind.SNOOZED


def test_a_task_of_asyncio_passes_a_suspension_on(invoker: HandlerInvoker) -> None:
    async def snooze() -> None:
        raise Snooze(5)

    async def handler() -> None:
        task = asyncio.create_task(snooze())
        await asyncio.wait([task])
        assert isinstance(task.exception(), Snooze)
        await task

    assert asyncio.run(invoker.invoke_async(make_leased_job(handler))).kind is OutcomeKind.SNOOZED


def test_a_cancel_whose_reason_is_no_text_is_an_outcome(run: Run) -> None:
    reason: Any = 42
    outcome = run(raising(Cancel(reason)))
    assert (outcome.kind, outcome.error) == (OutcomeKind.CANCELED, "42")


def test_retry_later_uses_up_an_attempt_and_chooses_its_own_wait(run: Run) -> None:
    outcome = run(raising(Retry.Later(90)), retry=Retry(base=2, jitter=0))
    assert (outcome.kind, outcome.cause, outcome.due) == (OutcomeKind.RETRY, Cause.FAILURE, NOW + 90 * SECOND)


def test_retry_later_in_the_last_attempt_is_a_dead_letter(run: Run) -> None:
    outcome = run(raising(Retry.Later(90)), make_lease(failures=5), retry=Retry(max_attempts=6))
    assert outcome.kind is OutcomeKind.FAILED


def test_retry_later_needs_no_traceback(run: Run) -> None:
    assert "\n" not in (run(raising(Retry.Later(90))).error or "")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_exit_of_a_handler_ends_its_attempt_and_not_the_worker(
    invoker: HandlerInvoker, error: BaseException
) -> None:
    assert invoker.invoke(make_leased_job(raising(error))).kind is OutcomeKind.RETRY


def test_a_system_exit_of_a_coroutine_ends_its_attempt_and_not_the_loop(invoker: HandlerInvoker) -> None:
    async def handler() -> None:
        raise SystemExit(3)

    assert asyncio.run(invoker.invoke_async(make_leased_job(handler))).kind is OutcomeKind.RETRY


def test_arguments_that_do_not_fit_any_more_are_a_dead_letter_at_once_that_names_the_parameter(run: Run) -> None:
    def handler(order_id: int) -> None: ...

    outcome = run(handler, make_lease(b'{"order_id":"x"}'))
    assert (outcome.error or "").startswith("InvalidArguments: shop.handler, parameter 'order_id'")
    assert (outcome.kind, outcome.cause) == (OutcomeKind.FAILED, Cause.FAILURE)


def test_arguments_that_a_handler_itself_gives_wrongly_are_retried(run: Run) -> None:
    error = InvalidArguments(handler="shop.other", parameter="order_id", problem="it is wrong")
    assert run(raising(error)).kind is OutcomeKind.RETRY


def test_a_request_to_stop_makes_an_error_a_cancellation(invoker: HandlerInvoker) -> None:
    job = make_leased_job(raising(ValueError("stopped half way")))
    job.context.request_stop()
    outcome = invoker.invoke(job)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CANCELED, None)
    assert outcome.error == "stopped on request (ValueError: stopped half way)"


def test_a_handler_that_finishes_in_spite_of_a_request_to_stop_has_completed(invoker: HandlerInvoker) -> None:
    job = make_leased_job(lambda: 7)
    job.context.request_stop()
    assert invoker.invoke(job).kind is OutcomeKind.COMPLETED


def test_an_error_after_the_timeout_is_charged_to_the_timeout(invoker: HandlerInvoker) -> None:
    def handler() -> None:
        if current_job().cancelled:
            raise TimeoutError("too slow")

    job = make_leased_job(handler, timeout=5)
    job.timed_out_after = 5 * SECOND
    job.context.request_stop()
    outcome = invoker.invoke(job)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.RETRY, Cause.TIMEOUT)


def test_a_handler_that_finishes_in_spite_of_its_timeout_has_completed(invoker: HandlerInvoker) -> None:
    job = make_leased_job(lambda: 7, timeout=5)
    job.timed_out_after = 5 * SECOND
    assert invoker.invoke(job).kind is OutcomeKind.COMPLETED


def test_a_canceled_coroutine_is_an_outcome(invoker: HandlerInvoker) -> None:
    async def handler() -> None:
        current = asyncio.current_task()
        assert current is not None
        current_job().request_stop()
        current.cancel()
        await asyncio.sleep(0)

    outcome = asyncio.run(invoker.invoke_async(make_leased_job(handler)))
    assert (outcome.kind, outcome.error) == (OutcomeKind.CANCELED, "stopped on request (CancelledError)")


def test_after_the_attempt_there_is_no_current_job(run: Run) -> None:
    run(raising(ValueError("no")))
    with pytest.raises(RuntimeError, match="no job runs here"):
        current_job()


def test_starting_and_ending_a_job_are_claimed_once() -> None:
    job = make_leased_job(lambda: None)
    assert [job.claim_start(), job.claim_start(), job.claim_end(), job.claim_end()] == [True, False, True, False]


def test_a_job_runs_between_its_start_and_its_end() -> None:
    job = make_leased_job(lambda: None)
    states = [job.is_running]
    job.claim_start()
    states.append(job.is_running)
    job.claim_end()
    states.append(job.is_running)
    assert states == [False, True, False]


def test_delays_begin_at_the_latest_time_that_it_may_be() -> None:
    """Retries without a delay, and results, begin at the earliest: they would wait for no reason."""
    invoker = HandlerInvoker(JsonSerializer(), lambda: NOW, latest=lambda: NOW + 70, max_result=1_000)
    policy = Retry(max_attempts=3, base=2, jitter=0)
    assert plainly(invoker, make_leased_job(raising(ValueError()), retry=policy)).due == NOW + 70 + 2 * SECOND
    assert plainly(invoker, make_leased_job(raising(Snooze(5)))).due == NOW + 70 + 5 * SECOND
    assert plainly(invoker, make_leased_job(raising(Snooze(0)))).due == NOW
