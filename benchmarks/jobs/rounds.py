"""Runs candidates in turn on fresh stores, and returns their rates; an unfinished round counts as 0."""

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from benchmarks.jobs.process import TooSlow, fresh_store
from benchmarks.jobs.systems.system import System
from benchmarks.measure import Line, faster, rates

S = TypeVar("S", bound=System)
F = TypeVar("F", bound=tuple[Any, ...])

OnStore: TypeAlias = Callable[[Path], float]


def best_rates(runs: Mapping[str, OnStore], rounds: int) -> dict[str, float]:
    """Run everything in turn on fresh stores and return the best rate of each; 0 if it never finished."""
    return rates({name: _on_fresh_store(run) for name, run in runs.items()}, rounds)


def rates_in_turn(runs: Mapping[str, OnStore], rounds: int) -> dict[str, list[float]]:
    """Run everything in turn on fresh stores, every second round in reverse order; return all rates of each."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in list(runs.items())[:: 1 if number % 2 else -1]:
            gc.collect()
            found[name].append(_on_fresh_store(run)())
    return found


def _on_fresh_store(run: OnStore) -> Callable[[], float]:
    def measure() -> float:
        with fresh_store() as store:
            try:
                return run(store)
            except TooSlow as reason:
                print(reason, file=sys.stderr)
                return 0.0

    return measure


def least(run: Callable[[Path], F], rounds: int) -> F | None:
    """Run on fresh stores and return the least of the figures; None if it never finished."""
    found: list[F] = []
    for _ in range(rounds):
        with fresh_store() as store:
            try:
                found.append(run(store))
            except TooSlow as reason:
                print(reason, file=sys.stderr)
    return min(found, default=None)


def for_each(systems: Sequence[S], run: Callable[[S, Path], float]) -> dict[str, OnStore]:
    """Make the runs of several systems, by their titles."""
    return {system.title: partial(run, system) for system in systems}


def against(
    what: str,
    ours: float,
    peers: Mapping[str, float],
    *,
    at_least: float | None = None,
    of_best: float | None = None,
) -> list[Line]:
    """Compare a rate of ours with each peer's, and if asked for with the best of theirs, which comes first."""
    ordered = sorted(peers.items(), key=lambda peer: -peer[1])
    lines = []
    for place, (name, rate) in enumerate(ordered):
        if rate == 0:
            lines.append(Line(what=what, ours=f"{ours:,.0f}/s", peer=f"{name} did not finish"))
            continue
        bound = of_best if of_best is not None and place == 0 else at_least
        lines.append(faster(what, ours, rate, peer_name=name, at_least=bound))
    return lines
