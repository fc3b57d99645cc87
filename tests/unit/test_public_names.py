"""The public names are a contract: adding or removing one is a decision, not an accident."""

from inspect import isclass

import pytest

import mainspring
from mainspring import errors, jobs, runners, testing, timing


def test_the_package_lists_exactly_these_names() -> None:
    assert sorted(mainspring.__all__) == [
        "ActivityRow",
        "ArgumentsTooLarge",
        "AttemptEnd",
        "AttemptInfo",
        "AuditEntry",
        "CallbackPause",
        "CallbackPolicy",
        "CallbackRefused",
        "CallbackSecret",
        "Cancel",
        "CannotListen",
        "CatchUp",
        "Clock",
        "CommitStatistics",
        "Concurrency",
        "Cron",
        "DeadLetter",
        "DuplicateJob",
        "EngineUnavailable",
        "EventKind",
        "EventStream",
        "Every",
        "Explanation",
        "FuncQueue",
        "GroupStatistics",
        "Histogram",
        "HttpLimits",
        "Identity",
        "InvalidArguments",
        "InvalidTransition",
        "JobContext",
        "JobEvent",
        "JobFailed",
        "JobFunction",
        "JobHandle",
        "JobInfo",
        "JobNotFound",
        "JobPage",
        "JobStatus",
        "Keep",
        "KeyRing",
        "LimitExceeded",
        "Liveness",
        "Mainspring",
        "MainspringError",
        "Middleware",
        "MissingExtra",
        "NatsSettings",
        "NewToken",
        "NoSigningKey",
        "NotAllowed",
        "OccurrenceInfo",
        "PartialSubmit",
        "Permissions",
        "PoolStatistics",
        "Priority",
        "ProcessSettings",
        "ProcessStatistics",
        "ProgressInfo",
        "Queue",
        "QueueEmpty",
        "QueueFull",
        "QueueStatistics",
        "QueueTotals",
        "Rate",
        "Reason",
        "RefusedByStore",
        "Retry",
        "RunnerClosed",
        "RunnerExecutor",
        "RunnerStatistics",
        "ScheduleBusy",
        "ScheduleInfo",
        "ScheduleInvalid",
        "ScheduleNotFound",
        "Scope",
        "SequenceBound",
        "ShutdownBehavior",
        "ShutdownReport",
        "SignatureInvalid",
        "SlotKind",
        "SlotStatistics",
        "Snooze",
        "Statistics",
        "StoreCorrupt",
        "StoreMoved",
        "StoreReplaced",
        "StoreTooNew",
        "Submit",
        "Suspend",
        "SystemClock",
        "TaskEvent",
        "TaskFailure",
        "TaskFuture",
        "TaskHandle",
        "TaskObserver",
        "TaskRunner",
        "TaskTraits",
        "ThreadPool",
        "TokenInfo",
        "TokenInvalid",
        "TokenNotFound",
        "Unique",
        "UnknownHandler",
        "UnknownSerializer",
        "UpcomingSlot",
        "WorkerAlive",
        "WorkerNotFound",
        "WorkerStatus",
        "WouldDeadlock",
        "acting_as",
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


def test_job_is_a_deprecated_alias_of_job_function() -> None:
    with pytest.warns(DeprecationWarning, match="use mainspring.JobFunction") as warnings:
        assert mainspring.Job is mainspring.JobFunction
    assert [warning.filename for warning in warnings] == [__file__]
    with pytest.warns(DeprecationWarning, match="use mainspring.jobs.JobFunction"):
        assert jobs.Job is jobs.JobFunction
    assert not hasattr(jobs, "no_such_name")


def test_importing_job_warns_at_the_line_of_the_import() -> None:
    with pytest.warns(DeprecationWarning, match="use mainspring.JobFunction") as warnings:
        from mainspring import Job  # noqa: PLC0415 - the import is tested
    assert Job is mainspring.JobFunction
    assert {warning.filename for warning in warnings} == {__file__}


def test_a_star_import_does_not_use_the_deprecated_alias() -> None:
    assert "Job" not in mainspring.__all__
    assert "Job" not in dir(mainspring)
