"""Readiness: a job stands in its lane, and the next worker with room takes it."""

from __future__ import annotations

from mainspring.engines.nats.stored import StoredJob
from mainspring.engines.nats.workspace import Workspace


def make_ready(workspace: Workspace, job: StoredJob) -> None:
    """Put a job into its lane. What is written there of it may be outdated when it is read."""
    ready = workspace.names.ready_of(job.queue, job.type, job.priority, job.id)
    workspace.announce(ready, job)
