"""What the error hook is told when a task fails."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.runners.task import PostedFrom, Task
from mainspring.runners.traits import TaskTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """An exception that left a task, and where the task came from."""

    error: BaseException
    task: str
    """The qualified name of the callable."""
    runner: str
    posted_from: PostedFrom | None
    """The function that posted it; with `ThreadPool(trace_posts=True)` also the line."""
    traits: TaskTraits

    @classmethod
    def of(cls, task: Task, error: BaseException) -> TaskFailure:
        """Describe the failure of a task that is still running."""
        return cls(
            error=error,
            task=task.name,
            runner=task.runner.name,
            posted_from=task.posted_from(),
            traits=task.traits,
        )

    def __str__(self) -> str:
        try:
            text = str(self.error)
        except Exception:
            text = "(an error without a readable text)"
        return (
            f"task {self.task} on runner {self.runner!r} failed: {type(self.error).__name__}: {text}"
            f" (posted from {self.posted_from})"
        )
