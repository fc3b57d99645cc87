"""Exceptions in tasks: they reach the error hook, say where the task came from, and affect no other task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest

from mainspring import TaskFailure, TaskRunner
from tests.conformance.runner_suite.base import RunnerBase
from tests.support import PATIENCE, occupied, within

ERRORS = [
    ValueError("value"),
    BaseException("base"),
    SystemExit(3),
    GeneratorExit("generator"),
    KeyboardInterrupt("keyboard"),
    StopIteration("stop"),
    asyncio.CancelledError("cancelled"),
]


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NamelessCallable:
    def __call__(self) -> None:
        raise ValueError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Failing(RunnerBase):
    def assert_all_places_work(self, runner: TaskRunner) -> None:
        """Show that no worker has died."""
        with occupied(runner, self.places):
            pass
        assert runner.submit(int, "5").result(PATIENCE) == 5

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    def test_an_exception_reaches_the_hook_and_the_runner_lives_on(
        self, runner: TaskRunner, failures: list[TaskFailure], error: BaseException
    ) -> None:
        def fail() -> NoReturn:
            raise error

        runner.post(fail)
        runner.wait_idle()
        (failure,) = failures
        assert failure.error is error
        assert failure.runner == runner.name
        assert failure.task.endswith("fail")
        assert failure.posted_from is not None
        assert failure.posted_from.file == __file__
        assert failure.posted_from.function.endswith("test_an_exception_reaches_the_hook_and_the_runner_lives_on")
        assert runner.statistics().failed == 1
        self.assert_all_places_work(runner)

    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    def test_an_exception_of_a_submitted_task_stays_in_its_future(
        self, runner: TaskRunner, failures: list[TaskFailure], error: BaseException
    ) -> None:
        def fail() -> NoReturn:
            raise error

        assert runner.submit(fail).exception(PATIENCE) is error
        runner.wait_idle()
        assert failures == []
        self.assert_all_places_work(runner)

    def test_many_failures_kill_no_worker(self, runner: TaskRunner, failures: list[TaskFailure]) -> None:
        for _ in range(100):
            runner.post(int, "x")
        runner.wait_idle()
        assert len(failures) == 100
        assert runner.statistics().failed == 100
        self.assert_all_places_work(runner)

    @pytest.mark.parametrize(
        ("function", "arguments"),
        [
            (str.upper, (42,)),
            (int.__add__, ("x", 1)),
            ("x".__add__, (1,)),
            (Mock(side_effect=ValueError("no")), ()),
            (Mock(side_effect=ValueError("no")).method, (1, 2)),
            (NamelessCallable(), ()),
        ],
        ids=["method descriptor", "slot wrapper", "method wrapper", "mock", "method of a mock", "no repr"],
    )
    def test_a_callable_with_an_odd_name_kills_no_worker(
        self,
        runner: TaskRunner,
        failures: list[TaskFailure],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> None:
        expected = 0 if isinstance(function, Mock) and function.side_effect is None else 1
        for _ in range(self.places + 1):
            runner.post(function, *arguments)
        within(runner.wait_idle)
        assert len(failures) == expected * (self.places + 1)
        assert all(isinstance(failure.task, str) for failure in failures)
        self.assert_all_places_work(runner)

    def test_an_exception_without_text_kills_no_worker(
        self, runner: TaskRunner, failures: list[TaskFailure]
    ) -> None:
        error = BrokenText()

        def fail() -> NoReturn:
            raise error

        runner.post(fail)
        runner.wait_idle()
        assert failures[0].error is error
        assert "BrokenText" in str(failures[0])
        self.assert_all_places_work(runner)

    @pytest.mark.parametrize("hook_error", [RuntimeError("hook"), SystemExit("hook"), KeyboardInterrupt("hook")])
    def test_a_hook_that_fails_is_logged_together_with_what_it_was_told(
        self,
        runner: TaskRunner,
        failures: list[TaskFailure],
        caplog: pytest.LogCaptureFixture,
        hook_error: BaseException,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def hook(failure: TaskFailure) -> NoReturn:
            raise hook_error

        monkeypatch.setattr(runner.services, "_on_error", hook)
        runner.post(int, "x")
        runner.wait_idle()
        told, original = (record for record in caplog.records if record.name == "mainspring.runners")
        assert told.exc_info is not None
        assert told.exc_info[1] is hook_error
        assert original.exc_info is not None
        assert isinstance(original.exc_info[1], ValueError)
        self.assert_all_places_work(runner)

    def test_without_a_hook_the_failure_is_logged(
        self, runner: TaskRunner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runner.services, "_on_error", None)
        runner.post(int, "x")
        runner.wait_idle()
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert runner.name in record.getMessage()
        assert "test_without_a_hook_the_failure_is_logged" in record.getMessage()

    def test_a_log_that_fails_kills_no_worker(
        self, runner: TaskRunner, failures: list[TaskFailure], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(record: logging.LogRecord) -> bool:
            raise RuntimeError("log")

        monkeypatch.setattr(runner.services, "_on_error", None)
        logger = logging.getLogger("mainspring.runners")
        logger.addFilter(refuse)
        try:
            for _ in range(self.places + 1):
                runner.post(int, "x")
            within(runner.wait_idle)
        finally:
            logger.removeFilter(refuse)
        assert runner.statistics().failed == self.places + 1
        self.assert_all_places_work(runner)
