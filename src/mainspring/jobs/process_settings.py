"""How many processes run handlers of `execution="process"`, and when they are replaced."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from mainspring.runners.checks import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The processes of one worker. They are started when the first job needs them."""

    count: int = field(default_factory=lambda: os.cpu_count() or 1)
    max_jobs: int | None = None
    """After so many jobs a process is replaced by a new one."""
    max_memory: int | None = None
    """A process that has more bytes than this after a job is replaced by a new one."""

    def __post_init__(self) -> None:
        require_positive(self.count, "count", "processes")
        if self.max_jobs is not None:
            require_positive(self.max_jobs, "max_jobs", "jobs")
        if self.max_memory is not None:
            require_positive(self.max_memory, "max_memory", "bytes")

    def options(self) -> dict[str, Any]:
        """What the pool of processes wants to know."""
        return {"max_jobs": self.max_jobs, "max_memory": self.max_memory}
