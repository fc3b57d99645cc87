"""Errors carry data, tell the remedy, and travel."""

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

from mainspring import errors
from mainspring.errors import MainspringError, QueueEmpty, QueueFull, RunnerClosed, WouldDeadlock

SAMPLES = [
    RunnerClosed(runner="orders"),
    QueueFull(name="orders", capacity=10),
    QueueEmpty(name="orders"),
    WouldDeadlock(runner="orders", task="reload"),
]
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
        "runner 'orders' is shut down and takes no more tasks; post before shutdown() or inside the with block, "
        "or with ShutdownBehavior.BLOCK from inside one of its tasks"
    )


@each_sample
def test_the_message_names_every_value_and_a_remedy(error: MainspringError) -> None:
    problem, remedy = str(error).split("; ")
    assert all(repr(value) in problem for value in vars(error).values())
    assert remedy


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
