"""CPython's own tests of executors pass on the executors of all runners; those that cannot apply are listed.

`make pythons` runs them where they are installed (see `cpython_suite.py`). They take a minute and a half, so
`make test` does not; `tests/conformance/runner_suite/executing.py` tests executors there.
"""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cpython_suite import REMEDY, find_suite, module_of
from tests.conformance.owned_executors import KINDS, PoolExecutor

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]

NO_CONSTRUCTOR = "it tests the constructor: an executor of a runner has none, and the runner has its own options"
OWN_THREADS = (
    "it looks at private attributes: the threads belong to the runner, whose own tests count and name them"
)
BY_NAME = "it tests the class ThreadPoolExecutor itself, which it names"
BEGUN_AT_ONCE = "it expects that a task has begun when submit returns; a runner does not promise that"
NOT_APPLICABLE = {
    "test_max_workers_negative": NO_CONSTRUCTOR,
    "test_default_workers": NO_CONSTRUCTOR,
    "test_saturation": OWN_THREADS,
    "test_idle_thread_reuse": OWN_THREADS,
    "test_threads_terminate": OWN_THREADS,
    "test_thread_names_assigned": OWN_THREADS,
    "test_thread_names_default": OWN_THREADS,
    "test_context_manager_shutdown": BY_NAME,
    "test_del_shutdown": BY_NAME,
    "test_shutdown_no_wait": BY_NAME,
    "test_hang_global_shutdown_lock": BY_NAME,
    "test_process_fork_from_a_threadpool": BY_NAME,
    "test_cancel_futures": BEGUN_AT_ONCE,
    "test_cancel_futures_wait_false": BEGUN_AT_ONCE,
}

# CPython's classes of tests, and the module that has them from Python 3.12 on
EXECUTOR_TESTS = {"ThreadPoolExecutorTest": "test_thread_pool", "ThreadPoolShutdownTest": "test_shutdown"}
FUTURE_TESTS = {"WaitTests": "test_wait", "AsCompletedTests": "test_as_completed"}


SUITE = find_suite()


def run_script(original: Any, *arguments: str, **environment: str) -> Any:
    """Run a script of CPython's tests, which then imports the executors of Mainspring."""
    *options, script = arguments
    prelude = f"import sys, test; sys.path.insert(0, {str(ROOT)!r}); test.__path__.append({SUITE!r})\n"
    script = script.replace("from concurrent.futures import", "from tests.conformance.owned_executors import")
    return original(*options, prelude + script, **environment)


def make_tests(kind: type[PoolExecutor]) -> Iterator[type[unittest.TestCase]]:
    """Derive CPython's tests with another executor."""
    # The futures of all runners are of one class, and their tests take half a minute, so one kind is enough.
    names = EXECUTOR_TESTS | (FUTURE_TESTS if kind is PoolExecutor else {})
    for name, module_name in names.items():
        module = module_of(module_name)
        util = module_of("util")
        bases = (getattr(module, name), util.ThreadPoolMixin, util.BaseTestCase)
        unique = tuple(base for base in bases if not any(base in other.__mro__[1:] for other in bases))
        members: dict[str, Any] = {"executor_type": kind, "__module__": __name__}
        if kind.places is not None:
            members["worker_count"] = kind.places
        yield type(f"{kind.__name__}{name}", unique, members)


def add_tests(namespace: dict[str, Any]) -> None:
    """Add CPython's tests of each kind of executor to a module."""
    for kind in KINDS:
        for tests in make_tests(kind):
            for name in NOT_APPLICABLE:
                if hasattr(tests, name):
                    setattr(tests, name, None)  # hides the test of a base class
            namespace[tests.__name__] = tests


assert SUITE is not None, REMEDY
add_tests(globals())


@pytest.fixture(autouse=True)
def scripts_use_our_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of("test_shutdown")
    original = module.assert_python_ok
    monkeypatch.setattr(module, "assert_python_ok", lambda *arguments: run_script(original, *arguments))
