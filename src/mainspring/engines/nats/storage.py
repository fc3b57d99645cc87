"""Remembers whether the server stores messages: what its last answers to writes have said.

A server that has reached its storage limit refuses messages, and says so. A server whose disk is full or broken
answers reads, but no write: server 2.15.1 then stores nothing in this stream until it is restarted, even if its
disk has room again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct

FULL = (10002, 10023, 10028, 10040, 10047)
"""Codes of errors: a limit of the account, the server, the memory, the tier or the files is reached."""
FULL_REMEDY = (
    "give JetStream more storage (max_file_store of the servers, the limits of the account), or delete ended "
    "jobs; what is due starts within seconds afterwards"
)
SILENT = "the server answers reads, but confirms no message, as after an error of its disk"
SILENT_REMEDY = (
    "look for 'write error' in the log of the server, free its disk and restart it: nats-server goes on refusing "
    "until it is restarted"
)
SILENT_SECONDS = 3.0
"""A server is silent if it has confirmed no message for so long, and has answered another request since then."""

logger = logging.getLogger("mainspring.nats")


class StorageProblem(Struct, frozen=True):
    """Why the server stores no messages, and what an operator can do about it."""

    text: str
    remedy: str

    @property
    def advice(self) -> str:
        """The remedy as a sentence."""
        return f"{self.remedy[0].upper()}{self.remedy[1:]}."


def problem_of(error: dict[str, object] | None) -> StorageProblem | None:
    """Return the problem that an error of the server reports; None if the error is about something else."""
    if error is None or error.get("err_code") not in FULL:
        return None
    return StorageProblem(f"the server has no storage left: {error.get('description')}", FULL_REMEDY)


def silent_problem() -> StorageProblem:
    """Return the problem of a server that answers reads, but no write."""
    return StorageProblem(SILENT, SILENT_REMEDY)


class StorageState:
    """Whether the server has stored the last messages of this process. Any thread may use it.

    `seconds` returns the time, and `answered` when the last request that got an answer was sent.
    """

    def __init__(self, address: str, seconds: Callable[[], float], answered: Callable[[], float]) -> None:
        self._address = address
        self._seconds = seconds
        self._answered = answered
        self._refusal: StorageProblem | None = None
        self._silent_since: float | None = None
        self._is_logged = False
        self.on_change: Callable[[], None] = lambda: None
        """Called when the server begins to refuse messages, and when it stores messages again."""

    @property
    def problem(self) -> StorageProblem | None:
        """Why the server stored none of the last messages; None if it stores messages, or if that is unknown."""
        since = self._silent_since
        if self._refusal is None and since is not None:
            is_silent = self._seconds() - since >= SILENT_SECONDS and self._answered() > since
            return silent_problem() if is_silent else None
        return self._refusal

    def stored(self) -> None:
        """Record that the server has stored a message."""
        if self._refusal is None and self._silent_since is None:
            return  # the usual case
        self._refusal = self._silent_since = None
        if self._is_logged:
            self._is_logged = False
            logger.warning("NATS at %s stores messages again", self._address)
            self.on_change()

    def refused(self, error: dict[str, object]) -> None:
        """Record that the server has answered a write with an error."""
        problem = problem_of(error)
        if problem is not None:
            self._refusal = problem
            self._log(problem)

    def unanswered(self, sent: float) -> None:
        """Record that the server has not answered a write in time that was sent at this time."""
        if self._silent_since is None:
            self._silent_since = sent
        problem = self.problem
        if problem is not None:
            self._log(problem)

    def _log(self, problem: StorageProblem) -> None:
        if not self._is_logged:
            self._is_logged = True
            logger.error(
                "NATS at %s stores nothing, so that jobs are neither accepted nor started: %s; %s",
                self._address,
                problem.text,
                problem.remedy,
            )
            self.on_change()
