"""The public names are a contract: adding or removing one is a decision, not an accident."""

import mainspring
from mainspring import runners, testing, timing


def test_the_package_lists_exactly_these_names() -> None:
    assert sorted(mainspring.__all__) == [
        "Clock",
        "FuncQueue",
        "MainspringError",
        "Priority",
        "QueueEmpty",
        "QueueFull",
        "RunnerClosed",
        "RunnerStatistics",
        "SequenceBound",
        "ShutdownBehavior",
        "ShutdownReport",
        "SystemClock",
        "TaskEvent",
        "TaskFailure",
        "TaskFuture",
        "TaskHandle",
        "TaskObserver",
        "TaskRunner",
        "TaskTraits",
        "ThreadPool",
        "WouldDeadlock",
        "blocking",
        "current_runner",
    ]


def test_every_listed_name_is_there_and_says_what_it_is() -> None:
    for module in (mainspring, runners, timing, testing):
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.{name}"
            if name != "TimerEntry":  # an alias of int
                assert getattr(module, name).__doc__, f"{module.__name__}.{name} has no docstring"
