"""A process that cancels jobs around their due instant: reads `id due` lines, says `answer id instant`."""

import random
import sys
from threading import Event, Thread

from mainspring.clock import SystemClock
from tests.processes.apps.jobs import app
from tests.processes.run_log import say

THREADS = 32
SPREAD = 0.020  # seconds before or after its due instant that a job is canceled

clock = SystemClock()


def cancel(orders: list[tuple[float, str]]) -> None:
    """Cancel each job at its instant, and say the answers."""
    for instant, job_id in orders:
        Event().wait(max(0.0, instant - clock.now().timestamp()))
        called = clock.now().timestamp()
        say(f"{app.cancel(job_id)} {job_id} {called}")


if __name__ == "__main__":
    chance = random.Random(sys.argv[1])
    orders = []
    for line in sys.stdin:
        job_id, due = line.split()
        orders.append((float(due) + chance.uniform(-SPREAD, SPREAD), job_id))
    orders.sort()
    threads = [Thread(target=cancel, args=(orders[place::THREADS],)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app.close()
