"""Run benchmarks and rewrite their parts of RESULTS.md: `python -m benchmarks [section or group …]`."""

import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.http import callbacks as http_callbacks
from benchmarks.http import dashboards as http_dashboards
from benchmarks.http import lists as http_lists
from benchmarks.http import submits as http_submits
from benchmarks.jobs import (
    activity,
    bulk,
    control,
    drain,
    limits,
    metrics,
    million,
    monitoring,
    pickup,
    processes,
    punctuality,
    schedules,
    sequences,
    signing,
    single,
    starting,
)
from benchmarks.measure import Section, machine, markdown
from benchmarks.nats import drain as nats_drain
from benchmarks.nats import keyed as nats_keyed
from benchmarks.nats import million as nats_million
from benchmarks.nats import punctuality as nats_punctuality
from benchmarks.nats import submit as nats_submit
from benchmarks.nats import takeover as nats_takeover
from benchmarks.runners import idle, latency, throughput, timers
from benchmarks.timing import section as wheel

RESULTS = Path(__file__).with_name("RESULTS.md")

# A name before a dot is a group: `python -m benchmarks jobs` measures all of its sections.
SECTIONS: dict[str, Callable[[], Section]] = {
    "throughput": throughput.run,
    "latency": latency.run,
    "idle": idle.run,
    "wheel": wheel.run,
    "timers": timers.run,
    "jobs.bulk": bulk.run,
    "jobs.single": single.run,
    "jobs.drain": drain.run,
    "jobs.pickup": pickup.run,
    "jobs.punctuality": punctuality.run,
    "jobs.million": million.run,
    "jobs.control": control.run,
    "jobs.sequences": sequences.run,
    "jobs.schedules": schedules.run,
    "jobs.limits": limits.run,
    "jobs.metrics": metrics.run,
    "jobs.processes": processes.run,
    "jobs.starting": starting.run,
    "jobs.activity": activity.run,
    "jobs.monitoring": monitoring.run,
    "jobs.signing": signing.run,
    "http.submits": http_submits.run,
    "http.lists": http_lists.run,
    "http.callbacks": http_callbacks.run,
    "http.dashboards": http_dashboards.run,
    "nats.submit": nats_submit.run,
    "nats.drain": nats_drain.run,
    "nats.punctuality": nats_punctuality.run,
    "nats.million": nats_million.run,
    "nats.takeover": nats_takeover.run,
    "nats.keyed": nats_keyed.run,
}

HEAD = """\
# Benchmark results

Written by `make bench`; do not edit. Everything in one table was measured side by side in one run, in turn,
and the best of several rounds counts, unless a title says otherwise: the machines are shared and noisy, so only
the ratios mean something.
"""

MARK = "<!-- section {name} -->"

BEHIND = """\
## Where Mainspring is not first, or misses a bound of ours

| section | what | Mainspring | beside it | ratio | bound |
|---|---|--:|--:|--:|--:|"""
COLUMNS = 6
SLOWER = re.compile(r"0\.\d+ x")
NOT_A_PEER = re.compile(
    r"\b(ours|bare|raw|without|with none|not signed|not counted|not scraped|no limits|counted)\b"
)


def choose(arguments: list[str]) -> list[str]:
    """Return the names of sections, in their order; all without arguments."""
    known = set(SECTIONS) | {name.partition(".")[0] for name in SECTIONS}
    unknown = set(arguments) - known
    if unknown:
        sys.exit(f"unknown section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if not arguments or name in arguments or name.partition(".")[0] in arguments]


def read_parts(text: str) -> dict[str, str]:
    """Return what an earlier run wrote, by section."""
    pieces = re.split(MARK.format(name=r"([\w.]+)"), text)
    return {name: part.strip() for name, part in zip(pieces[1::2], pieces[2::2], strict=True)}


def is_written_by_parts(text: str) -> bool:
    """Whether a part can be exchanged; a file without marks is only replaced as a whole."""
    return "## " not in text or bool(read_parts(text))


def find_behind(parts: dict[str, str]) -> str:
    """Return a section with the rows in which Mainspring is slower than another program, or misses a bound.

    A bare loop, and Mainspring itself in another situation, are no other programs.
    """
    rows = []
    for name in SECTIONS:
        for line in parts.get(name, "").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not line.startswith("| ") or len(cells) != COLUMNS or cells[0] == "what":
                continue
            what, ours, peer, ratio, bound, met = cells
            is_slower = SLOWER.match(ratio) is not None and NOT_A_PEER.search(peer) is None
            if is_slower or met == "**no**":
                rows.append(f"| {name} | {what} | {ours} | {peer} | {ratio} | {bound} |")
    return "\n".join([BEHIND, *rows])


def write_parts(parts: dict[str, str]) -> None:
    marked = [f"{MARK.format(name=name)}\n\n{parts[name]}" for name in SECTIONS if name in parts]
    RESULTS.write_text("\n\n".join([HEAD.strip(), find_behind(parts), *marked]) + "\n", encoding="utf-8")


def main() -> None:
    chosen = choose(sys.argv[1:])
    before = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    parts = read_parts(before)
    writes = is_written_by_parts(before) or chosen == list(SECTIONS)
    failed = []
    for name in chosen:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        try:
            part = markdown(SECTIONS[name](), machine())
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        print(f"\n{part}\n", flush=True)
        parts[name] = part
        if writes:  # at once: a run that is cut short keeps what it has measured
            write_parts(parts)
    if not writes:
        print("RESULTS.md has no marks of its sections, so it was left alone; run all once", file=sys.stderr)
    if failed:
        sys.exit(f"could not measure {', '.join(failed)}; RESULTS.md keeps their earlier figures")


if __name__ == "__main__":
    main()
