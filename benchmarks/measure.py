"""Helpers of all benchmarks: measure candidates in turn for several rounds, compare them, check bounds."""

import gc
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measured figure, and the bound it is held against."""

    what: str
    ours: str
    peer: str = ""
    ratio: str = ""
    bound: str = ""
    is_met: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    lines: Sequence[Line] = field(default_factory=list)
    text: str = ""


def rates(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Run everything in turn, `rounds` times, and return the best rate of each."""
    best = dict.fromkeys(runs, 0.0)
    for _ in range(rounds):
        for name, run in runs.items():
            gc.collect()
            best[name] = max(best[name], run())
    return best


def percentile(samples: Sequence[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def times(ratio: float) -> str:
    return f"{ratio:.1f} x" if ratio >= 1 else f"{ratio:.2f} x"


def faster(what: str, ours: float, peer: float, *, peer_name: str, at_least: float | None = None) -> Line:
    """Compare two rates per second."""
    ratio = ours / peer
    return Line(
        what=what,
        ours=f"{ours:,.0f}/s",
        peer=f"{peer:,.0f}/s {peer_name}",
        ratio=times(ratio),
        bound="" if at_least is None else f"≥ {at_least:g} x",
        is_met=None if at_least is None else ratio >= at_least,
    )


def paired(what: str, ours: Sequence[float], peer: Sequence[float], *, peer_name: str, at_least: float) -> Line:
    """Compare the rates per second of several rounds: the median ratio, the smallest and the largest."""
    ratios = [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]
    return Line(
        what=what,
        ours=f"{median(ours):,.0f}/s",
        peer=f"{median(peer):,.0f}/s {peer_name}",
        ratio=f"{times(median(ratios))} ({min(ratios):.2f} to {max(ratios):.2f})",
        bound=f"≥ {at_least:g} x",
        is_met=median(ratios) >= at_least,
    )


def at_most(what: str, value: float, limit: float, unit: str) -> Line:
    return Line(what=what, ours=f"{value:.3g} {unit}", bound=f"≤ {limit:g} {unit}", is_met=value <= limit)


def markdown(section: Section, measured: str) -> str:
    parts = [f"## {section.title}", measured]
    if section.lines:
        rows = ["| what | Mainspring | beside it | ratio | bound | met |", "|---|--:|--:|--:|--:|---|"]
        for line in section.lines:
            met = "" if line.is_met is None else "yes" if line.is_met else "**no**"
            rows.append(f"| {line.what} | {line.ours} | {line.peer} | {line.ratio} | {line.bound} | {met} |")
        parts.append("\n".join(rows))
    if section.text:
        parts.append(section.text)
    return "\n\n".join(parts)


def machine() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    cores = sum(line.startswith("processor") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC · {model}, {cores} cores, shared · "
        f"{platform.system()} {platform.release()} · {platform.python_implementation()} {sys.version.split()[0]}"
    )
