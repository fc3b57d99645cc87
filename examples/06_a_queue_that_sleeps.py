"""Many small writes become few large ones: a queue whose handler gets everything that has piled up."""

from threading import Event

from mainspring import FuncQueue, ThreadPool

batches: list[int] = []
first_arrived, go = Event(), Event()


def write(rows: list[int]) -> None:
    first_arrived.set()
    go.wait()  # a slow disk
    batches.append(len(rows))


with ThreadPool(2) as pool:
    writer: FuncQueue[int] = FuncQueue(write, pool, batch=True)
    writer.dispatch(0)
    first_arrived.wait()
    for row in range(1, 1_000):
        writer.dispatch(row)
    go.set()
    writer.wait_idle(timeout=10)

assert sum(batches) == 1_000
assert len(batches) == 2
print(f"1,000 rows in {len(batches)} writes: {batches}")
