"""Run every benchmark and rewrite RESULTS.md: `python -m benchmarks [section …]`."""

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Section, machine, markdown
from benchmarks.runners import idle, latency, throughput, timers
from benchmarks.timing import section as wheel

RESULTS = Path(__file__).with_name("RESULTS.md")

SECTIONS: dict[str, Callable[[], Section]] = {
    "throughput": throughput.run,
    "latency": latency.run,
    "idle": idle.run,
    "wheel": wheel.run,
    "timers": timers.run,
}

HEAD = """\
# Benchmark results

Written by `make bench`; do not edit. Everything in one table was measured side by side in one run, in turn,
and the best of several rounds counts: the machines are shared and noisy, so only the ratios mean something.
"""


def main() -> None:
    chosen = sys.argv[1:] or list(SECTIONS)
    unknown = set(chosen) - set(SECTIONS)
    if unknown:
        sys.exit(f"unknown section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    parts = [HEAD, machine()]
    for name in chosen:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        part = markdown(SECTIONS[name]())
        print(f"\n{part}\n", flush=True)
        parts.append(part)
    if chosen == list(SECTIONS):
        RESULTS.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
