"""Refuses changes of the store while a child process of a worker imports the application.

A script without `if __name__ == "__main__":` submits its jobs again in each child process that imports it, and
these jobs start more child processes. A module that does so at import is no better: it runs once in each child.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mainspring.jobs.processes.handler_location import is_child

REMEDY = "put the code that starts workers, submits jobs and changes schedules under: if __name__ == '__main__':"


class ImportGuard:
    """Whether this process is a child that imports the application or its script."""

    def __init__(self) -> None:
        self.is_importing = is_child()  # a spawned process imports the script before anything else

    def script_imported(self) -> None:
        """Allow changes: the child has imported its script, and serves requests."""
        self.is_importing = False

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Refuse changes within the block, which imports a module in a child."""
        self.is_importing = True
        try:
            yield
        finally:
            self.is_importing = False

    def require_imported(self, what: str) -> None:
        """Raise `RuntimeError` if this process is importing. `what` is what the program does."""
        if self.is_importing:
            raise RuntimeError(
                f"this program {what} while a process of its worker imports it, and would do so once for each "
                f"process; {REMEDY}"
            )


import_guard = ImportGuard()
