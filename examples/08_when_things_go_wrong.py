"""Nothing disappears: errors reach the hook with their origin, bad input says what would be right."""

from mainspring import QueueFull, RunnerClosed, TaskFailure, ThreadPool, WouldDeadlock

failures: list[TaskFailure] = []


def refresh(table: str) -> None:
    raise ConnectionError(f"no route to {table}")


with ThreadPool(1, on_error=failures.append) as pool:
    tables = pool.sequenced("tables", capacity=2)
    tables.post(refresh, "prices")
    tables.wait_idle(timeout=10)

    nested = tables.submit(lambda: tables.submit(len, "").result())  # waits for its own sequence
    assert isinstance(nested.exception(), WouldDeadlock)
    print(nested.exception())

print(failures[0])

try:
    pool.post(print, "too late")
except RunnerClosed as closed:
    print(closed)

try:
    ThreadPool(1).sequenced().post(print, delay=-5)
except ValueError as wrong:
    print(wrong)

print(QueueFull(name="tables", capacity=2))
