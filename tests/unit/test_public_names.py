"""The public names are a contract: adding or removing one is a decision, not an accident."""

from inspect import isclass

import pytest

import mainspring
from mainspring import errors, jobs, runners, testing, timing


def test_the_package_lists_exactly_these_names() -> None:
    assert sorted(mainspring.__all__) == [
        "ArgumentsTooLarge",
        "AttemptInfo",
        "Cancel",
        "CatchUp",
        "Clock",
        "Concurrency",
        "Cron",
        "DuplicateJob",
        "EngineUnavailable",
        "EventKind",
        "EventStream",
        "Every",
        "Explanation",
        "FuncQueue",
        "InvalidArguments",
        "InvalidTransition",
        "Job",
        "JobContext",
        "JobEvent",
        "JobFailed",
        "JobHandle",
        "JobInfo",
        "JobNotFound",
        "JobPage",
        "JobStatus",
        "Keep",
        "LimitExceeded",
        "Mainspring",
        "MainspringError",
        "Middleware",
        "NatsSettings",
        "OccurrenceInfo",
        "PartialSubmit",
        "PoolStatistics",
        "Priority",
        "ProcessSettings",
        "ProgressInfo",
        "Queue",
        "QueueEmpty",
        "QueueFull",
        "QueueStatistics",
        "Rate",
        "Reason",
        "RefusedByStore",
        "Retry",
        "RunnerClosed",
        "RunnerStatistics",
        "ScheduleInfo",
        "ScheduleInvalid",
        "ScheduleNotFound",
        "SequenceBound",
        "ShutdownBehavior",
        "ShutdownReport",
        "Snooze",
        "StoreCorrupt",
        "StoreMoved",
        "StoreTooNew",
        "Submit",
        "SystemClock",
        "TaskEvent",
        "TaskFailure",
        "TaskFuture",
        "TaskHandle",
        "TaskObserver",
        "TaskRunner",
        "TaskTraits",
        "ThreadPool",
        "Unique",
        "UnknownHandler",
        "WouldDeadlock",
        "blocking",
        "current_batch",
        "current_job",
        "current_runner",
    ]


def test_every_error_is_importable_from_the_package() -> None:
    listed = [getattr(mainspring, name) for name in mainspring.__all__]
    found = [value for value in vars(errors).values() if isclass(value) and issubclass(value, Exception)]
    assert [error for error in found if error not in listed] == []


def test_the_job_manager_and_the_serializers_are_found_in_jobs() -> None:
    assert {"JobManager", "JsonSerializer", "MsgpackSerializer", "Engine"} <= set(jobs.__all__)


def test_the_test_kit_lists_exactly_these_names() -> None:
    assert sorted(testing.__all__) == [
        "Crash",
        "EngineConformance",
        "ManualClock",
        "ProcessDied",
        "Recording",
        "TimeTravel",
        "assert_submitted",
        "every_crash",
        "inline",
        "recording",
        "refute_submitted",
        "submitted",
        "time_travel",
    ]


def test_every_listed_name_is_there_and_says_what_it_is() -> None:
    for module in (mainspring, jobs, runners, timing, testing):
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.{name}"
            if name != "TimerEntry":  # an alias of int
                assert getattr(module, name).__doc__, f"{module.__name__}.{name} has no docstring"


def test_a_name_that_a_test_has_replaced_stays_replaced_whatever_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced = object()
    monkeypatch.setattr(mainspring, "current_job", replaced)
    assert not hasattr(mainspring, "no_such_name")
    assert "current_job" in dir(mainspring)
    assert mainspring.current_job is replaced
