"""The right place for each thing: one thread for the screen, three for the disk, and answers that come back."""

from functools import partial
from threading import get_ident

from mainspring import ThreadPool

files = {"a.txt": "alpha", "b.txt": "beta", "c.txt": "gamma"}
shown: list[str] = []
screen_threads: set[int] = set()


def read(name: str) -> str:
    return files[name]


def show(text: str) -> None:
    screen_threads.add(get_ident())
    shown.append(text)


with ThreadPool(4) as pool:
    screen = pool.single_thread(name="screen")  # always the same thread
    disk = pool.parallel(limit=3, name="disk")  # never more than three at once
    for name in files:
        disk.post_and_reply(partial(read, name), show, reply_to=screen)

assert sorted(shown) == sorted(files.values())
assert len(screen_threads) == 1
print(f"shown by one thread: {', '.join(sorted(shown))}")
