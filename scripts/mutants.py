"""Run mutation tests over modules without threads and I/O: make mutants, or make mutants PARTS="retry cron".

`tests/mutants.toml` lists the modules, each with its unit tests, and the mutants that no test can kill. For each
module, mutmut changes one expression at a time and runs the tests that reach it. A test should then fail. A mutant
that survives shows a fact that no test states. This script prints the score of each module, and exits with 1 if a
score is too low, or if the list has a mutant that does not survive.

docs/decisions/030-mutation-tests.md says why it is mutmut, and what it does not change.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "mutants.toml"
FOLDER = ROOT / ".mutants"
LOWEST_SCORE = 90.0  # per cent

# Each test has a limit of CPU time, see run_mutmut.py. None waits for half an hour, however busy the machine is.
SETTINGS = """
[mutmut]
source_paths=src
only_mutate={module}
pytest_add_cli_args=
    --hypothesis-profile=mutants
    --hypothesis-seed=0
    --timeout=1800
    -Wignore:Module already imported:pytest.PytestAssertRewriteWarning
{left_out}
pytest_add_cli_args_test_selection=
{tests}
process_isolation=forkserver
timeout_constant=10
timeout_multiplier=10
"""


@dataclass(frozen=True)
class Mutant:
    """One changed expression: the function, and its lines before and after the change."""

    function: str
    was: str
    becomes: str

    def __str__(self) -> str:
        return f"{self.function}\n      - {self.was}\n      + {self.becomes}"


@dataclass(frozen=True)
class Part:
    """A module, its tests, and its equivalent mutants: they behave like the original."""

    name: str
    module: str
    tests: list[str]
    left_out: list[str]
    """Tests that mutmut itself makes fail, because its wrappers around functions need memory."""
    equivalent: Counter[Mutant] = field(default_factory=Counter)


@dataclass(frozen=True)
class Report:
    """The result for one part."""

    total: int
    statuses: Counter[str]
    survivors: Counter[Mutant]
    timeouts: list[Mutant]
    equivalent: Counter[Mutant]

    @property
    def score(self) -> float:
        """Per cent that the tests kill, of the mutants that are not equivalent. A time-out is a kill."""
        killable = self.total - (self.survivors & self.equivalent).total()
        return 100 * (1 - (self.survivors - self.equivalent).total() / killable) if killable else 100.0

    @property
    def is_good(self) -> bool:
        """Whether the score is high enough, and the list is true."""
        return self.score >= LOWEST_SCORE and not self.equivalent - self.survivors


def read_parts() -> dict[str, Part]:
    """Read the list of modules."""
    parts = {}
    for name, entry in tomllib.loads(LIST.read_text()).items():
        equivalent = Counter(
            Mutant(known["function"], known["was"], known["becomes"]) for known in entry.get("equivalent", [])
        )
        tests, left_out = ([f"tests/unit/{test}" for test in entry.get(key, [])] for key in ("tests", "left_out"))
        parts[name] = Part(name, f"src/mainspring/{entry['module']}", tests, left_out, equivalent)
    return parts


def prepare(part: Part) -> Path:
    """Make the folder where mutmut runs: links to the project, and the settings for one module."""
    for path in (part.module, *part.tests):
        if not (ROOT / path.partition("::")[0]).exists():
            sys.exit(f"{LIST.relative_to(ROOT)}: {part.name}: there is no {path}")
    folder = FOLDER / part.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("src", "tests", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    tests = "\n".join(f"    {test}" for test in part.tests)
    left_out = "\n".join(f"    --deselect={test}" for test in part.left_out)
    (folder / "setup.cfg").write_text(SETTINGS.format(module=part.module, tests=tests, left_out=left_out))
    return folder


def report_on(part: Part, results: list[tuple[str, str, str, str]]) -> Report:
    """Compare the results with the list of equivalent mutants."""
    statuses = Counter(status for _, status, _, _ in results)
    mutants = [(Mutant(function, was, becomes), status) for function, status, was, becomes in results]
    survivors = Counter(mutant for mutant, status in mutants if status not in ("killed", "timeout"))
    timeouts = [mutant for mutant, status in mutants if status == "timeout"]
    return Report(len(results), statuses, survivors, timeouts, part.equivalent)


def show(part: Part, report: Report) -> None:
    """Print the score of a part, its time-outs, and what is to be done."""
    known = (report.survivors & report.equivalent).total()
    counts = ", ".join(f"{count} {status}" for status, count in sorted(report.statuses.items()))
    print(f"{report.score:5.1f} %  {part.name}: {report.total} mutants, {counts}; {known} equivalent", flush=True)
    for heading, mutants in (
        ("survives", report.survivors - report.equivalent),
        ("time-out", report.timeouts),
        (f"is listed in {LIST.name}, but does not survive", report.equivalent - report.survivors),
    ):
        for mutant in mutants:
            print(f"    {heading}: {mutant}")


def measure(part: Part) -> Report:
    """Run mutmut for one part in a process of its own, which imports the changed module."""
    folder = prepare(part)
    with (folder / "output.txt").open("w") as output:
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / "run_mutmut.py", part.module],
            cwd=folder,
            check=False,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    results = folder / "results.json"
    if done.returncode or not results.exists():
        last = re.split(r"[\r\n]+", (folder / "output.txt").read_text().strip())[-30:]
        sys.exit("\n".join([*last, f"mutmut failed for {part.name}; see {folder}"]))
    return report_on(part, json.loads(results.read_text()))


def main(arguments: list[str]) -> int:
    """Measure the parts with these names, or all of them."""
    parts = read_parts()
    if unknown := set(arguments) - parts.keys():
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(parts)}")
    is_good = True
    for name in arguments or parts:
        report = measure(parts[name])
        show(parts[name], report)
        is_good = is_good and report.is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
