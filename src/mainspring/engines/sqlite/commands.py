"""Commands of users and operators on single jobs: cancel, reopen, replay, edit, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.rows import STATUSES, pairs, to_json, to_stored
from mainspring.jobs.engine import Cancel, Changed, Command, Delete, Edit, Reopen, Replay
from mainspring.jobs.status import FINAL, JobStatus


class Commands:
    """Carries commands out, inside of a unit."""

    def __init__(self, database: Database, now: Callable[[], int]) -> None:
        self._database = database
        self._now = now

    def carry_out(self, commands: Sequence[Command]) -> list[Changed]:
        """Carry out commands in order; cancels that stand next to each other are one statement."""
        found = pairs(self._database.write(sql.STATUSES_OF, (to_json([command.id for command in commands]),)))
        statuses = {job_id: STATUSES[code] for job_id, code in found}
        answers: list[Changed] = []
        cancels: list[str] = []
        for command in commands:
            status = statuses.get(command.id)
            if isinstance(command, Cancel):
                cancels.append(command.id)
                is_done = status is JobStatus.PENDING
                answers.append(Changed(is_done, status))
                if is_done:
                    statuses[command.id] = JobStatus.CANCELED
                continue
            self._cancel(cancels)
            answer = Changed(False, None) if status is None else self._carry_out_one(command, status)
            answers.append(answer)
            if answer.is_done:
                _follow(command, statuses)
        self._cancel(cancels)
        return answers

    def _cancel(self, ids: list[str]) -> None:
        if ids:
            batch = to_json(ids)
            self._database.write(sql.REQUEST_STOP, (batch,))
            self._database.write(sql.CANCEL, (batch, self._now()))
            ids.clear()

    def _carry_out_one(self, command: Command, status: JobStatus) -> Changed:
        write = self._database.write
        match command:
            case Reopen() | Replay() if status is JobStatus.FAILED:
                replayed_as = write(sql.REPLAYED_AS, (command.id,))
                if replayed_as is not None:  # its work goes on elsewhere
                    return Changed(False, status, replayed_as)
                if isinstance(command, Replay):
                    self._replay(command)
                else:
                    write(sql.REOPEN, (command.id, command.due))
            case Edit() if status is JobStatus.FAILED:
                write(sql.EDIT, (command.id, to_stored(command.payload, command.codec), command.codec))
            case Delete() if status in FINAL and command.status in (None, status):
                write(sql.DELETE, (command.id,))
            case _:
                return Changed(False, status)
        return Changed(True, status)

    def _replay(self, command: Replay) -> None:
        payload = None if command.payload is None else to_stored(command.payload, command.codec)
        self._database.write(
            sql.REPLAY, (command.id, command.new_id, command.due, self._now(), payload, command.codec)
        )
        self._database.write(sql.LINK_REPLAY, (command.id, command.new_id))


def _follow(command: Command, statuses: dict[str, JobStatus]) -> None:
    """Keep up with what a command did, for those that follow it in the batch."""
    if isinstance(command, Reopen):
        statuses[command.id] = JobStatus.PENDING
    elif isinstance(command, Replay):
        statuses[command.new_id] = JobStatus.PENDING
    elif isinstance(command, Delete):
        del statuses[command.id]
