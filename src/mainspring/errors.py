"""Every error Mainspring raises on purpose. Each carries its data, and says what was wrong and what to do.

MainspringError
├── RunnerClosed (also a RuntimeError)
├── QueueFull
├── QueueEmpty
└── WouldDeadlock (also a RuntimeError)

Errors survive pickling and copying: they travel between threads, processes and machines.
"""

from typing import Any


def _without_constructor(error_class: type[Exception], *args: object) -> Exception:
    return error_class.__new__(error_class, *args)


class MainspringError(Exception):
    """The root: `except MainspringError` catches all of Mainspring's own errors and nothing else."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own way calls the class with `args`, the finished message, but our constructors
        # take keywords. The message is in `args` already, the data in `__dict__`.
        return _without_constructor, (type(self), *self.args), self.__dict__


class RunnerClosed(MainspringError, RuntimeError):
    """A task came after the shutdown of its runner; it was not accepted and will not run."""

    def __init__(self, *, runner: str) -> None:
        self.runner = runner
        super().__init__(
            f"runner {runner!r} is shut down and takes no more tasks; post before shutdown() or inside the with "
            "block, or with ShutdownBehavior.BLOCK from inside one of its tasks"
        )


class QueueFull(MainspringError):
    """A bounded queue had no room for one more; what was offered was not accepted."""

    def __init__(self, *, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        super().__init__(
            f"queue {name!r} is full: it holds {capacity}, its capacity; "
            "offer it again when some are done, or make the queue with a larger capacity="
        )


class QueueEmpty(MainspringError):
    """There was nothing to take from a queue."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(f"queue {name!r} is empty; try again after the next push()")


class WouldDeadlock(MainspringError, RuntimeError):
    """A task waited for something that cannot happen before that task itself has ended."""

    def __init__(self, *, runner: str, task: str) -> None:
        self.runner = runner
        self.task = task
        super().__init__(
            f"waiting for {task!r} inside of a task of runner {runner!r} can never end; "
            "go on in another task with post_and_reply(), or wait outside of the runner"
        )
