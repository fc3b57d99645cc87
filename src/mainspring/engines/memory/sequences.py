"""Which job of each sequence is next: those with equal keys run one after another, by (turn, submission).

The turn of a job is its due time at submit. It stays while the job runs and comes back, so a retry holds its
place, unless the job is placed anew. A key of which no job is alive is forgotten.
"""

from __future__ import annotations

from mainspring.engines.memory.line import Line


class Sequences:
    """The lines of all keys, and who runs."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._holders: dict[str, str] = {}  # for each key the job in somebody's hands
        self._turns: dict[str, int] = {}

    def place(self, job_id: str, due: int, *, anew: bool) -> int:
        """Return the turn of a job: it gets one if it has none, or if it is placed anew."""
        if anew or job_id not in self._turns:
            self._turns[job_id] = due
        return self._turns[job_id]

    def wait(self, key: str, turn: int, place: int, job_id: str) -> None:
        """Queue up."""
        self._release(key, job_id)
        self._lines.setdefault(key, Line()).enter(job_id, turn, place)

    def hold(self, key: str, job_id: str) -> None:
        """Let nobody else start: this job is in somebody's hands."""
        self._leave(key, job_id)
        self._holders[key] = job_id

    def end(self, key: str, job_id: str) -> None:
        """Let the others go on without this job."""
        self._leave(key, job_id)
        self._release(key, job_id)
        self._turns.pop(job_id, None)

    def next(self, key: str) -> str | None:
        """Return the job that may start; None: one is in somebody's hands, or none waits."""
        return None if key in self._holders else self._first(key)

    def in_front_of(self, key: str, job_id: str) -> str | None:
        """Return the job that a waiting one waits for."""
        front = self._holders.get(key) or self._first(key)
        return None if front == job_id else front

    def _first(self, key: str) -> str | None:
        line = self._lines.get(key)
        first = None if line is None else line.first()
        return None if first is None else first[1]

    def _leave(self, key: str, job_id: str) -> None:
        line = self._lines.get(key)
        if line is not None:
            line.leave(job_id)
            if not line:
                del self._lines[key]

    def _release(self, key: str, job_id: str) -> None:
        if self._holders.get(key) == job_id:
            del self._holders[key]
