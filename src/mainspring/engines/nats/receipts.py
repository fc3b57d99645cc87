"""Receipts: how far a move of jobs into this store has come, and who has to wait for its end.

The receipt of a move is written in one draft with the jobs that it confirms. So whoever goes on, after a death at
any moment, knows exactly which jobs are here, even if they have been run and forgotten since.

A stage follows only upon those after which it makes sense: whoever finishes a move and whoever takes it back at
the same time cannot both go on.

No worker begins while a move is under way. Both sides write first and look afterwards, the worker its sign of life
and the mover its receipt, so one of them sees the other.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats.naming import to_token
from mainspring.engines.nats.stored import decode
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs.transfers import Stage


class Receipt(Struct, frozen=True, array_like=True):
    """How far a move has come."""

    id: str
    source: str
    """Where the jobs come from, for people."""
    base: int
    """Places of its jobs are counted from here: they are before those of all that is submitted later."""
    stage: Stage = Stage.MOVING
    position: int = 0
    """All jobs up to this place of the source are here."""
    has_settings: bool = False


class Receipts:
    """Reads and writes receipts."""

    def __init__(self, workshop: Workshop, workers: Workers) -> None:
        self._workshop = workshop
        self._workers = workers

    def subject(self, move_id: str) -> str:
        """Where the receipt of a move stands."""
        return self._workshop.names.moves + to_token(move_id)

    def find(self, move_id: str) -> Receipt | None:
        """Return the receipt of a move, as the server has it now."""
        return self.read(self._workshop.open(), move_id)

    def read(self, workspace: Workspace, move_id: str) -> Receipt | None:
        """Return the receipt of a move in a workspace."""
        return workspace.get_struct(self.subject(move_id), Receipt)

    def require(self, workspace: Workspace, move_id: str) -> Receipt:
        """Return the receipt of a move that goes on; somebody may have taken it away."""
        receipt = self.read(workspace, move_id)
        if receipt is None:
            raise EngineUnavailable(
                engine=self._description,
                reason=f"nothing is known here of the move {move_id}",
                remedy="check the servers and the prefix, and whether somebody has deleted the stream",
            )
        return receipt

    def write(self, workspace: Workspace, receipt: Receipt) -> None:
        """Let a receipt be like this, together with what else the workspace writes."""
        workspace.put_struct(self.subject(receipt.id), receipt)

    def begin(self, move_id: str, source: str, last: int) -> Receipt:
        """Write the receipt of a move, unless there is one; from then on no worker begins here."""

        def work(workspace: Workspace) -> Receipt:
            receipt = self.read(workspace, move_id)
            if receipt is None:
                receipt = Receipt(move_id, source, base=workspace.now * 1_000 - last - 1)
                self.write(workspace, receipt)
            return receipt

        return self._workshop.carry_through(work)

    def keep_open(self, workspace: Workspace, move_id: str) -> bool:
        """Answer whether a move goes on; what else the workspace writes is stored only if that is still so."""
        receipt = self.require(workspace, move_id)
        if receipt.stage not in (Stage.MOVING, Stage.COMPLETE):
            raise self._overtaken(receipt)
        if receipt.stage is Stage.MOVING:
            self.write(workspace, receipt)
        return receipt.stage is Stage.MOVING

    def turn_to(self, move_id: str, stage: Stage, *, after: Collection[Stage]) -> None:
        """Let a move be at another stage, if it is at one of these, or is there already."""

        def work(workspace: Workspace) -> None:
            receipt = self.require(workspace, move_id)
            if receipt.stage is stage:
                return
            if receipt.stage not in after:
                raise self._overtaken(receipt)
            self.write(workspace, replace(receipt, stage=stage))

        self._workshop.carry_through(work)

    def _overtaken(self, receipt: Receipt) -> EngineUnavailable:
        return EngineUnavailable(
            engine=self._description,
            reason=f"somebody else goes on with the move from {receipt.source}; its stage is now: {receipt.stage}",
            remedy="run the same command again, which says what can be done now",
        )

    @property
    def _description(self) -> str:
        return f"NATS at {self._workshop.link.address}, prefix {self._workshop.names.prefix!r}"

    def forget(self, move_id: str) -> None:
        """Let there be no receipt: its move was taken back."""
        self._workshop.carry_through(lambda workspace: workspace.forget(self.subject(move_id)))

    def find_workers(self) -> list[str]:
        """Return the names of workers that live on this store."""
        return [sign.name for sign in self._workers.read_all().values() if not sign.has_left]

    def find_open(self, source: str | None = None) -> list[Receipt]:
        """Return the receipts of moves that are not complete: of all, or of those from one source."""
        found = self._workshop.link.scan(f"{self._workshop.names.moves}*")
        receipts = [decode(entry.data, Receipt) for _, entry in found if entry.data]
        return [
            receipt
            for receipt in receipts
            if receipt.stage is not Stage.COMPLETE and source in (None, receipt.source)
        ]

    def require_no_move(self) -> None:
        """Refuse a worker while jobs are on their way: it would run some before those whose turn is earlier."""
        for receipt in self.find_open():
            raise EngineUnavailable(
                engine=self._description,
                reason=f"jobs are being moved here from {receipt.source}, and workers wait for the last",
                remedy="finish it with the same mainspring migrate, or take it back with --undo",
            )
