"""The shop of the demonstration without durability: 20,000 time-outs in the memory of one process.

Most orders are paid in time, and paying cancels their time-out; the others are canceled by it. The books live on
one sequence, so they need no lock, and they must add up in the end. `mainspring demo` is the same shop with
durable jobs.
"""

import random
import sys
from dataclasses import dataclass, field
from threading import Event

from mainspring import Priority, SystemClock, TaskHandle, TaskTraits, ThreadPool

ORDERS = 20_000
TIMEOUT = 1.5  # seconds, for thirty minutes
PLACED_WITHIN = 1.5
PAID_SHARE = 0.9
NANOSECONDS = 1_000_000_000

clock = SystemClock()


@dataclass
class Books:
    """What happened to each order; touched by the tasks of one sequence only."""

    timeouts: dict[int, TaskHandle] = field(default_factory=dict)
    paid: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    paid_too_late: int = 0
    lateness_ms: list[float] = field(default_factory=list)


class Shop:
    """Takes orders; every method runs as a task of one sequence."""

    def __init__(self, pool: ThreadPool) -> None:
        self.books = Books()
        self.counter = pool.sequenced("counter")
        self.all_settled = Event()

    def place(self, order: int) -> None:
        due = clock.monotonic_ns() + round(TIMEOUT * NANOSECONDS)
        self.books.timeouts[order] = self.counter.post(self.time_out, order, due, delay=TIMEOUT)

    def pay(self, order: int) -> None:
        if self.books.timeouts[order].cancel():
            self.books.paid.add(order)
            self.check_end()
        else:
            self.books.paid_too_late += 1

    def time_out(self, order: int, due: int) -> None:
        self.books.lateness_ms.append((clock.monotonic_ns() - due) / 1e6)
        self.books.cancelled.add(order)
        self.check_end()

    def check_end(self) -> None:
        if len(self.books.paid) + len(self.books.cancelled) == ORDERS:
            self.all_settled.set()


def percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[int(share * (len(samples) - 1))]


def show_progress(shop: Shop) -> None:
    books = shop.books
    done = len(books.paid) + len(books.cancelled)
    bar = "█" * (30 * done // ORDERS)
    print(f"\r  {bar:<30} {done:>6,} of {ORDERS:,} orders settled", end="", flush=True)


def main() -> int:
    print(f"A shop takes {ORDERS:,} orders; an order that is not paid after {TIMEOUT} s is canceled.\n")
    choose = random.Random(42)
    with ThreadPool(workers=4, name="shop") as pool:
        shop = Shop(pool)
        for order in range(ORDERS):
            placed = choose.random() * PLACED_WITHIN
            shop.counter.post(shop.place, order, delay=placed)
            if choose.random() < PAID_SHARE:
                shop.counter.post(shop.pay, order, delay=placed + 0.05 + choose.random() * TIMEOUT * 0.9)
        progress = pool.sequenced("progress", traits=TaskTraits(priority=Priority.BEST_EFFORT))
        if sys.stdout.isatty():
            progress.repeat(show_progress, shop, every=0.1)
        shop.all_settled.wait(timeout=60)  # a busy machine places orders late, and their time-outs follow
        shop.counter.wait_idle(timeout=60)
        if sys.stdout.isatty():
            progress.flush(timeout=10)
            show_progress(shop)
            print("\n")
        statistics = pool.statistics()

    books = shop.books
    lost = ORDERS - len(books.paid | books.cancelled)
    doubled = len(books.paid & books.cancelled)
    rows = {
        "placed": f"{ORDERS:,}",
        "paid in time, time-out canceled": f"{len(books.paid):,}",
        "canceled by their time-out": f"{len(books.cancelled):,}",
        "paid too late": f"{books.paid_too_late:,}",
        "lost": f"{lost}",
        "paid and canceled at once": f"{doubled}",
        "time-out, lateness p50 / p99": f"{percentile(books.lateness_ms, 0.5):.2f} / "
        f"{percentile(books.lateness_ms, 0.99):.2f} ms",
        "tasks run / canceled": f"{statistics.completed:,} / {statistics.cancelled:,}",
    }
    for what, figure in rows.items():
        print(f"  {what:<34} {figure:>16}")
    is_sound = lost == 0 and doubled == 0 and statistics.failed == 0
    print("\n  The books add up." if is_sound else "\n  The books do NOT add up!")
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
