"""Child processes of scripts: real programs that define handlers, forget the guard, fork, end and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainspring.jobs.processes.import_guard import REMEDY
from tests.support import PATIENCE
from tests.unit.jobs.process_requests import watched

ROOT = Path(__file__).parents[2]

PRELUDE = """
import os, sys
from mainspring.jobs.processes import locate
from mainspring.jobs.processes.pool import ProcessPool
from tests.unit.jobs.process_requests import handler_of, request_for

class OutOfStock(LookupError):
    pass

def triple(number: int) -> int:
    return 3 * number

def run_out() -> None:
    raise OutOfStock

def spin() -> None:
    while True:
        pass

def say(*words: object) -> None:
    print(*words, flush=True)

def start(pool: ProcessPool, function, **arguments):
    on_start = lambda running: say("started", running.pid)
    (answer,) = pool.run(request_for(function, **arguments), on_start=on_start, on_note=print).answers
    return answer
"""

Program = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Starts scripts, each with its standard output and errors in one pipe."""
    started = []

    def start(source: str, *command: str) -> subprocess.Popen[str]:
        (tmp_path / "script.py").write_text(PRELUDE + source)
        process = subprocess.Popen(
            [sys.executable, *(command or ("script.py",))],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def output_of(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=PATIENCE)
    return output


def pid_after(word: str, process: subprocess.Popen[str]) -> int:
    """Wait until the program names a process."""
    assert process.stdout is not None
    said, pid = process.stdout.readline().split()
    assert said == word
    return int(pid)


GUARDED = """
if __name__ == "__main__":
    pool = ProcessPool(1)
    say(start(pool, triple, number=14).result)
    answer = start(pool, run_out)
    say(answer.is_one_of((OutOfStock,)), answer.is_one_of((KeyError,)))
"""


@pytest.mark.parametrize("command", [("script.py",), ("-m", "script")], ids=["script", "module"])
def test_a_script_runs_its_own_handlers_and_ends_though_it_closes_nothing(
    program: Program, command: tuple[str, ...]
) -> None:
    process = program(GUARDED, *command)
    lines = [line for line in output_of(process).splitlines() if not line.startswith("started")]
    assert lines == ["b'42'", "True False"]
    assert process.returncode == 0


def test_a_script_without_a_guard_is_told_so_and_starts_no_bomb(program: Program) -> None:
    output = output_of(program("say(start(ProcessPool(1), triple, number=14).result)"))
    assert output.count(REMEDY) == 1
    assert (
        "CannotStart: no child process could start the handler: the last process ended with exit code 1" in output
    )
    assert "started" not in output


APPLICATION = """
from mainspring import Mainspring, Retry

app = Mainspring("sqlite:///jobs.db", durability="normal")

@app.job(execution="process", retry=Retry(max_attempts=1))
def quadruple(number: int) -> int:
    return 4 * number

def main() -> None:
    with app, app.running():
        say(quadruple.submit(10).result(timeout=60))
"""


def test_a_script_decorates_its_own_handlers(program: Program) -> None:
    process = program(APPLICATION + "if __name__ == '__main__': main()")
    assert (output_of(process), process.returncode) == ("40\n", 0)


def test_an_application_without_a_guard_is_told_so_and_starts_no_bomb(program: Program) -> None:
    process = program(APPLICATION + "main()")
    output = output_of(process)
    assert process.returncode == 1
    assert output.count(REMEDY) == 1
    assert "JobFailed" in output
    assert "no child process could start the handler" in output


@pytest.mark.parametrize("command", [("-c", PRELUDE + "locate(triple)"), ("-m", "package")], ids=["-c", "package"])
def test_a_program_that_is_not_imported_again_cannot_register_its_functions(
    program: Program, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(PRELUDE + "locate(triple)")
    output = output_of(program("", *command))
    assert "cannot run <function triple" in output
    assert "define it with def at the top level of a module" in output


SPINNING = """
if __name__ == "__main__":
    pool = ProcessPool(1)
    start(pool, spin)
"""


def test_a_busy_child_ends_with_its_worker_that_was_killed(program: Program) -> None:
    process = program(SPINNING)
    with watched(pid_after("started", process)) as wait_for_end:
        process.kill()
        wait_for_end()


FORKING = """
import signal

def fork(running) -> None:
    fork = os.fork()
    if fork == 0:
        signal.pause()
    say("forked", fork)
    say("started", running.pid)

if __name__ == "__main__":
    ProcessPool(1).run(request_for(spin), on_start=fork, on_note=print)
"""


def test_a_child_ends_with_its_worker_though_a_fork_of_that_lives_on(program: Program) -> None:
    process = program(FORKING)
    fork = pid_after("forked", process)
    try:
        with watched(pid_after("started", process)) as wait_for_end:
            process.kill()
            wait_for_end()
        os.kill(fork, 0)  # it lives
    finally:
        os.kill(fork, signal.SIGKILL)
