"""Run mutmut on one module: run_mutmut.py MODULE. `scripts/mutants.py` starts it in a folder that it has prepared.

What became of each mutant is written to `results.json`: function, status, the lines before and after the change.
"""

import json
import resource
import sys
from collections.abc import Callable, Generator, Iterable
from functools import partialmethod
from math import ceil
from pathlib import Path
from time import process_time

import pytest
from hypothesis import HealthCheck, Phase, settings
from mutmut.__main__ import cli
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import change_cwd
from mutmut.workers import isolation

PROCESSES = 2
MOST_MEMORY = 4 * 1024**3  # bytes: a mutant may fill a list for ever


def run() -> None:
    """Let mutmut change the module and run the tests, as `setup.cfg` of this folder says."""
    # mutmut 3.8.0 reads `_nodeid`, which items of pytest 9.2 do not have any more.
    pytest.Item._nodeid = property(lambda item: item.nodeid)  # type: ignore[attr-defined]
    # A busy machine must not look like a kill: only CPU time counts, and no example is too slow. A failing example
    # kills a mutant; a smaller one is not needed, nor one that failed for another mutant.
    patch = pytest.MonkeyPatch()
    patch.setattr(isolation, "register_timeout", lambda *_: None)
    patch.setattr(PytestRunner, "run_tests", run_tests)
    patch.setattr(PytestRunner, "run_stats", partialmethod(run_stats, PytestRunner.run_stats))
    settings.register_profile(
        "mutants",
        deadline=None,
        database=None,
        phases=set(Phase) - {Phase.shrink, Phase.explain},
        suppress_health_check=[HealthCheck.too_slow],
    )
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    cli(["run", "--max-children", str(PROCESSES)], standalone_mode=False)


def run_stats(runner: PytestRunner, original: Callable[..., int], *, tests: Iterable[str]) -> int:
    """Run the tests without a change; store the CPU time of each, where mutmut stores the time on the clock."""
    cpu_times = CpuTimes()
    execute = runner.execute_pytest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            runner, "execute_pytest", lambda params, plugins: execute(params, plugins=[*plugins, cpu_times])
        )
        code = original(runner, tests=tests)
    state().duration_by_test.update(cpu_times.seconds)
    return code


def run_tests(runner: PytestRunner, *, tests: Iterable[str], **_: object) -> int:
    """Run the quickest tests first, because the first failure ends the run. mutmut has them in any order."""
    durations = state().duration_by_test
    ordered = sorted(tests, key=lambda test: durations.get(test, 0.0))
    with change_cwd("mutants"):
        return int(runner.execute_pytest(runner._pytest_args_regular_run(ordered), plugins=[CpuTimeLimit()]))


class CpuTimes:
    """Measures the CPU time of each test."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        begin = process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = process_time() - begin


class CpuTimeLimit:
    """Ends the process when a test uses much more CPU time than it took without a change.

    The kernel ends it with SIGXCPU, which mutmut takes for a time-out. So a loop in C code ends, too.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        duration = state().duration_by_test.get(item.nodeid)
        if duration is not None and hard != resource.RLIM_INFINITY:  # mutmut has limited only the runs of mutants
            limit = ceil(process_time() + 10 + 5 * duration)
            resource.setrlimit(resource.RLIMIT_CPU, (min(limit, hard), hard))
        try:
            return (yield)
        finally:
            resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def results_of(module: Path) -> list[tuple[str, str, str, str]]:
    """Read what mutmut has stored about the mutants of a module."""
    data = SourceFileMutationData(path=module)
    data.load()
    return [
        (function_of(name), status_by_exit_code[code], *changed_lines(get_diff_for_mutant(name, path=module)))
        for name, code in data.exit_code_by_key.items()
    ]


def function_of(name: str) -> str:
    """Return the function of a mutant: mutmut calls them xǁClassǁmethod__mutmut_1 or x_function__mutmut_1."""
    mangled = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    return ".".join(mangled.split("ǁ")[1:]) if "ǁ" in mangled else mangled.removeprefix("x_")


def changed_lines(diff: str) -> tuple[str, str]:
    """Return the lines before and after a change, each as one line."""
    lines = diff.splitlines()[3:]  # without its heading
    was, becomes = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "-+")
    return " ".join(was), " ".join(becomes)


if __name__ == "__main__":
    run()
    Path("results.json").write_text(json.dumps(results_of(Path(sys.argv[1]))))
