"""The overhead of posting and running tasks, measured with many tasks that do nothing."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from time import perf_counter

from apscheduler.executors.pool import ThreadPoolExecutor as SchedulerExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from benchmarks.measure import Section, faster, rates
from mainspring import ThreadPool

TASKS = 100_000
FEWER_TASKS = 5_000  # for APScheduler, which needs a tenth of a millisecond for each


def nothing() -> None:
    pass


def executor(workers: int) -> float:
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda _: None, range(100)))  # all threads are up
        submit = pool.submit
        began = perf_counter()
        for _ in range(TASKS):
            submit(nothing)
    return TASKS / (perf_counter() - began)


def pool_post() -> float:
    with ThreadPool(4) as pool:
        return _timed(pool, [pool.post] * TASKS)


def sequences_post(count: int) -> float:
    with ThreadPool(4) as pool:
        sequences = [pool.sequenced() for _ in range(count)]
        return _timed(pool, [sequence.post for sequence in sequences] * (TASKS // count))


def pool_submit() -> float:
    with ThreadPool(4) as pool:
        return _timed(pool, [pool.submit] * TASKS)


def _timed(pool: ThreadPool, posts: Sequence[Callable[[Callable[[], None]], object]]) -> float:
    began = perf_counter()
    for post in posts:
        post(nothing)
    pool.wait_idle()
    return len(posts) / (perf_counter() - began)


def apscheduler() -> float:
    scheduler = BackgroundScheduler(
        executors={"default": SchedulerExecutor(4)}, job_defaults={"misfire_grace_time": None}, timezone="UTC"
    )
    scheduler.start()
    all_done = Event()
    done: list[None] = []

    def count() -> None:
        done.append(None)
        if len(done) == FEWER_TASKS:
            all_done.set()

    began = perf_counter()
    for _ in range(FEWER_TASKS):
        scheduler.add_job(count)
    all_done.wait(120)
    took = perf_counter() - began
    scheduler.shutdown()
    return FEWER_TASKS / took


def run(rounds: int = 7) -> Section:
    best = rates(
        {
            "executor of 4": partial(executor, 4),
            "pool": pool_post,
            "executor of 1": partial(executor, 1),
            "1 sequence": partial(sequences_post, 1),
            "10 sequences": partial(sequences_post, 10),
            "1,000 sequences": partial(sequences_post, 1000),
            "submit": pool_submit,
        },
        rounds,
    )
    scheduler = rates({"apscheduler": apscheduler}, 2)["apscheduler"]
    four, one = "ThreadPoolExecutor(4).submit", "ThreadPoolExecutor(1).submit"
    lines = [
        faster("`pool.post` + run, 4 workers", best["pool"], best["executor of 4"], peer_name=four, at_least=8),
        *(
            faster(f"`sequenced.post` + run, {name}", best[name], best["executor of 1"], peer_name=one, at_least=8)
            for name in ("1 sequence", "10 sequences", "1,000 sequences")
        ),
        faster(
            "`pool.submit` with a future",
            best["submit"],
            best["executor of 4"],
            peer_name=four,
            at_least=1.5,
        ),
        faster("`pool.post` + run, 4 workers", best["pool"], scheduler, peer_name="APScheduler, memory store"),
    ]
    return Section(title=f"Throughput, {TASKS:,} tasks, best of {rounds} rounds", lines=lines)
