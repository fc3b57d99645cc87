"""The timing wheel's part of the results: the bounds it is held to, and the table of all candidates."""

from benchmarks.measure import Line, Section
from benchmarks.timing import compare

OURS = "**shipped wheel**"
MEMORY_LIMIT = 160


def run(timers: int = 1_000_000, rounds: int = 3) -> Section:
    rows = compare.run(timers, rounds)
    seconds = {(row.name, row.workload): row.seconds for row in rows if row.seconds is not None}
    used = {row.workload: row.bytes_per_timer for row in rows if row.name == OURS and row.bytes_per_timer}

    def against(what: str, workload: str, peer: str, at_least: float) -> Line:
        mine, other = seconds[OURS, workload], seconds[peer, workload]
        return Line(
            what=what,
            ours=f"{mine:.2f} s",
            peer=f"{other:.2f} s {peer}",
            ratio=f"{other / mine:.1f} x",
            bound=f"≥ {at_least:g} x",
            is_met=other / mine >= at_least,
        )

    lines = [
        against("insert all + fire all in 3,600 advances", "all fire", compare.BARE_HEAP, 1.5),
        against("insert + cancel, each at once", "cancel at once", compare.LOOP, 2),
        against("insert all, then cancel all", "insert all, cancel all", compare.LOOP, 2),
        *(
            Line(
                what=f"{workload}, per pending timer",
                ours=f"{size:.0f} B",
                bound=f"≤ {MEMORY_LIMIT} B" if workload == "memory, 1 hour" else "",
                is_met=size <= MEMORY_LIMIT if workload == "memory, 1 hour" else None,
            )
            for workload, size in used.items()
        ),
    ]
    return Section(
        title=f"Timing wheel, {timers:,} timers, best of {rounds} rounds",
        lines=lines,
        text="All candidates, seconds and, in brackets, how many times as fast as the heap that can cancel:\n\n"
        + compare.markdown(rows),
    )
