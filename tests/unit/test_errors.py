"""Errors carry data, tell the remedy, and travel."""

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

from mainspring import errors
from mainspring.errors import (
    ArgumentsTooLarge,
    CallbackRefused,
    CannotListen,
    DuplicateJob,
    EngineUnavailable,
    InvalidArguments,
    InvalidTransition,
    JobFailed,
    JobNotFound,
    LimitExceeded,
    MainspringError,
    MissingExtra,
    NoSigningKey,
    NotAllowed,
    PartialSubmit,
    QueueEmpty,
    QueueFull,
    RefusedByStore,
    RunnerClosed,
    ScheduleBusy,
    ScheduleInvalid,
    ScheduleNotFound,
    SignatureInvalid,
    StoreCorrupt,
    StoreMoved,
    StoreReplaced,
    StoreTooNew,
    TokenInvalid,
    TokenNotFound,
    UnknownHandler,
    UnknownSerializer,
    WorkerAlive,
    WorkerNotFound,
    WouldDeadlock,
)

# An error of each class, and what its message must name.
EXAMPLES: list[tuple[MainspringError, list[str]]] = [
    (RunnerClosed(runner="orders"), ["'orders'"]),
    (QueueFull(name="orders", capacity=10), ["'orders'", "10"]),
    (QueueEmpty(name="orders"), ["'orders'"]),
    (WouldDeadlock(runner="orders", task="reload"), ["'orders'", "'reload'"]),
    (DuplicateJob(existing_id="order-42"), ["'order-42'"]),
    (UnknownHandler(name="shop.gone", known=("shop.cancel",)), ["'shop.gone'", "shop.cancel"]),
    (UnknownSerializer(name="sealed", known=("json", "msgpack")), ["'sealed'", "json, msgpack"]),
    (
        InvalidArguments(handler="shop.cancel", parameter="order_id", problem="Expected `int`"),
        ["shop.cancel", "'order_id'", "Expected `int`"],
    ),
    (
        LimitExceeded(what="the id", size=1_000, limit=200, remedy="use a shorter one"),
        ["the id", "1,000", "200", "use a shorter one"],
    ),
    (ArgumentsTooLarge(handler="shop.cancel", size=2_000_000, limit=1_000_000), ["shop.cancel", "2,000,000"]),
    (JobNotFound(job_id="order-42"), ["'order-42'"]),
    (
        InvalidTransition(job_id="order-42", status="COMPLETED", action="retry", needs="FAILED"),
        ["'order-42'", "COMPLETED", "retry", "FAILED"],
    ),
    (JobFailed(job_id="order-42", status="FAILED", reason="ValueError: no"), ["'order-42'", "ValueError: no"]),
    (
        PartialSubmit(done=["a"], failed=["b", "c"], cause="the disk is full"),
        ["1 job was", "2 were", "disk is full"],
    ),
    (
        ScheduleInvalid(rule="cron '0 25 * * *'", problem="hour is '25'", remedy="give 0 to 23"),
        ["'0 25 * * *'", "'25'", "0 to 23"],
    ),
    (ScheduleNotFound(name="nightly"), ["'nightly'", "app.schedules.list()"]),
    (ScheduleBusy(name="nightly", job_id="7"), ["'nightly'", "'7' has not ended", "app.cancel('7')"]),
    (
        SignatureInvalid(what="cannot replay job 'a'", problem="it has no signature", remedy="submit another"),
        ["cannot replay job 'a'", "no signature; submit another"],
    ),
    (NoSigningKey(what="schedule 'a'"), ["schedule 'a' must be signed", "sign_with"]),
    (TokenInvalid(problem="the token is revoked", remedy="make another"), ["is revoked; make another"]),
    (TokenNotFound(name="shpo", known=("shop",)), ["'shpo'", "did you mean 'shop'"]),
    (WorkerNotFound(number=7), ["no remote worker 7", "enroll again"]),
    (WorkerAlive(number=7, name="web-1:4711"), ["worker 7 (web-1:4711) is alive", "stop the process"]),
    (NotAllowed(name="shop", scope="read", queue="mail"), ["'shop'", "scope read for all types and queue 'mail'"]),
    (
        CallbackRefused(url="https://a/b", reason="it is not listed", remedy="list it"),
        ["https://a/b must not be called: it is not listed; list it"],
    ),
    (CannotListen(address="a:80", reason="it is in use", remedy="stop it"), ["at a:80: it is in use; stop it"]),
    (MissingExtra(feature="serve", extra="web"), ["serve needs", "pip install 'mainspring[web]'"]),
    (RefusedByStore(engine="SQLite file x", reason="TooBigError: too big"), ["SQLite file x", "too big"]),
    (
        EngineUnavailable(engine="SQLite file x", reason="it is locked", remedy="try again"),
        ["SQLite file x", "it is locked", "try again"],
    ),
    (StoreCorrupt(engine="SQLite file x", reason="damaged", remedy="restore a backup"), ["damaged"]),
    (StoreTooNew(engine="SQLite file x", reason="version 9", remedy="install a newer Mainspring"), ["version 9"]),
    (
        StoreMoved(engine="SQLite file x", reason="moved to nats://a", remedy="use that", target="nats://a"),
        ["SQLite file x", "nats://a"],
    ),
    (StoreReplaced(engine="SQLite file x", reason="it was removed", remedy="restart"), ["was removed; restart"]),
]
SAMPLES = [error for error, _ in EXAMPLES]
CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, MainspringError) and value is not MainspringError
]

Travel = Callable[[MainspringError], MainspringError]

each_sample = pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)


def through_pickle(error: MainspringError) -> MainspringError:
    arrived: MainspringError = pickle.loads(pickle.dumps(error))
    return arrived


def test_every_error_has_a_sample_here() -> None:
    assert {type(sample) for sample in SAMPLES} == set(CLASSES)


def test_the_tree_in_the_docstring_names_every_error() -> None:
    assert [c.__name__ for c in CLASSES if f"── {c.__name__}" not in (errors.__doc__ or "")] == []


@pytest.mark.parametrize("error_class", [RunnerClosed, WouldDeadlock])
def test_misuse_is_a_runtime_error_too(error_class: type[MainspringError]) -> None:
    assert issubclass(error_class, RuntimeError)


def test_runner_closed_says_what_to_do() -> None:
    assert str(RunnerClosed(runner="orders")) == (
        "runner 'orders' is shut down or shutting down, and takes no more tasks; post before shutdown() or inside "
        "the with block, or, during the shutdown, with ShutdownBehavior.BLOCK from inside one of its tasks"
    )


@pytest.mark.parametrize(("error", "named"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_the_message_names_every_value_and_a_remedy(error: MainspringError, named: list[str]) -> None:
    assert [name for name in named if name not in str(error)] == []
    problem, _, remedy = str(error).partition("; ")
    assert problem
    assert remedy


def test_an_error_without_a_parameter_names_only_the_handler() -> None:
    error = InvalidArguments(handler="shop.cancel", parameter=None, problem="too many positional arguments")
    assert str(error).startswith("shop.cancel: too many positional arguments; ")


def test_arguments_that_are_too_large_are_caught_as_either() -> None:
    assert issubclass(ArgumentsTooLarge, InvalidArguments)
    assert issubclass(ArgumentsTooLarge, LimitExceeded)


@pytest.mark.parametrize("error_class", [StoreCorrupt, StoreMoved, StoreReplaced, StoreTooNew])
def test_a_bad_file_is_caught_as_an_unavailable_engine(error_class: type[MainspringError]) -> None:
    assert issubclass(error_class, EngineUnavailable)


@each_sample
@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, through_pickle])
def test_errors_survive_travel(error: MainspringError, travel: Travel) -> None:
    arrived = travel(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_notes_travel_too() -> None:
    error = QueueEmpty(name="orders")
    error.add_note("seen at noon")
    assert through_pickle(error).__notes__ == ["seen at noon"]
