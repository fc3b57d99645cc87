"""Delayed posts against other timers of Python: arming, cancelling, firing, and what each costs in memory."""

import asyncio
import gc
import sched
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Timer
from time import perf_counter, sleep, time
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler

from benchmarks.measure import Line, Section
from mainspring import ThreadPool

HOUR = 3600.0
ROUNDS = 3
ARM_LIMIT, CANCEL_LIMIT, BYTES_LIMIT = 1.5, 1.0, 260


def nothing() -> None:
    pass


def arm_and_cancel(
    count: int, arm: Callable[[float], Any], cancel: Callable[[Any], object]
) -> tuple[float, float]:
    """Return microseconds for arming one timer an hour away, and for cancelling it."""
    began = perf_counter()
    handles = [arm(HOUR + number * 1e-3) for number in range(count)]
    armed = perf_counter()
    for handle in handles:
        cancel(handle)
    return (armed - began) / count * 1e6, (perf_counter() - armed) / count * 1e6


def in_pool(count: int) -> tuple[float, float]:
    with ThreadPool(4) as pool:
        sequence = pool.sequenced()
        return arm_and_cancel(
            count, lambda delay: sequence.post(nothing, delay=delay), lambda handle: handle.cancel()
        )


def in_asyncio(count: int) -> tuple[float, float]:
    loop = asyncio.new_event_loop()
    try:
        return arm_and_cancel(count, lambda delay: loop.call_later(delay, nothing), lambda handle: handle.cancel())
    finally:
        loop.close()


def in_sched(count: int) -> tuple[float, float]:
    scheduler = sched.scheduler(time, sleep)
    base = time()
    return arm_and_cancel(count, lambda delay: scheduler.enterabs(base + delay, 0, nothing), scheduler.cancel)


def in_threads(count: int) -> tuple[float, float]:
    def arm(delay: float) -> Timer:
        timer = Timer(delay, nothing)
        timer.start()
        return timer

    def cancel(timer: Timer) -> None:
        timer.cancel()
        timer.join()

    return arm_and_cancel(count, arm, cancel)


def in_apscheduler(count: int) -> tuple[float, float]:
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.start()
    base = datetime.now(UTC)
    try:
        return arm_and_cancel(
            count,
            lambda delay: scheduler.add_job(nothing, "date", run_date=base + timedelta(seconds=delay)),
            lambda job: job.remove(),
        )
    finally:
        scheduler.shutdown()


def bytes_per_delayed_post(count: int) -> float:
    with ThreadPool(1) as pool:
        sequence = pool.sequenced()
        gc.collect()
        tracemalloc.start()
        for number in range(count):
            sequence.post(nothing, delay=HOUR + number * 1e-3)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return used / count


def run() -> Section:
    measured = [
        ("Mainspring `post(delay=…)`", 100_000, in_pool),
        ("asyncio `call_later`", 100_000, in_asyncio),
        ("`sched`", 2_000, in_sched),
        ("`threading.Timer`", 1_000, in_threads),
        ("APScheduler, memory store", 5_000, in_apscheduler),
    ]
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):  # in turn
        for name, count, measure in measured:
            found = measure(count)
            best[name] = min(best.get(name, found), found, key=sum)
    (armed, canceled), (asyncio_armed, _) = (best[name] for name, _, _ in measured[:2])
    lines = []
    for name, count, _ in measured:
        figure = "{:.2f} / {:.2f} µs".format(*best[name])
        is_ours = name.startswith("Mainspring")
        lines.append(
            Line(
                what=f"{name}, {count:,} timers: arm / cancel one",
                ours=figure if is_ours else "",
                peer="" if is_ours else figure,
                bound=f"≤ {ARM_LIMIT:g} x asyncio / ≤ {CANCEL_LIMIT:g} µs" if is_ours else "",
                is_met=armed <= ARM_LIMIT * asyncio_armed and canceled <= CANCEL_LIMIT if is_ours else None,
            )
        )
    size = bytes_per_delayed_post(100_000)
    lines.append(
        Line(
            what="memory per delayed post, handle and all",
            ours=f"{size:.0f} B",
            bound=f"≤ {BYTES_LIMIT} B",
            is_met=size <= BYTES_LIMIT,
        )
    )
    return Section(title="Delayed tasks beside other timers", lines=lines)
