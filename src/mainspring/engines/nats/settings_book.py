"""The book of settings: which queues are paused, and which limits hold, for all processes alike.

It is one record. Whoever lets jobs pass reads it along with the gates (`read`), so a limit is obeyed from the
moment in which it was arranged. For everybody else there is a copy, which is refreshed when a note says that it
is outdated.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.stored import decode
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs.commands import DropLimit, PauseQueue, PutLimit
from mainspring.jobs.limits import Limit


class _Record(Struct, frozen=True, array_like=True):
    paused: tuple[str, ...] = ()
    limits: tuple[PutLimit, ...] = ()


class Settings(Struct, frozen=True):
    """What the book says."""

    revision: int = 0
    paused: frozenset[str] = frozenset()
    limits: dict[str, Limit] = {}
    definitions: tuple[PutLimit, ...] = ()


class SettingsBook:
    """Reads and changes the settings. The copy may be looked at from any thread."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._copy = Settings()
        self.must_refresh = True
        """Whether the copy may be outdated; set on any thread."""

    @property
    def paused(self) -> frozenset[str]:
        """The queues from which no jobs start."""
        return self._copy.paused

    @property
    def limits(self) -> dict[str, Limit]:
        """The limits that hold, by family."""
        return self._copy.limits

    def list_limits(self) -> list[PutLimit]:
        """Return the limits as they were defined, in the order in which they first were."""
        return list(self._copy.definitions)

    def refresh(self) -> None:
        """Read what holds now."""
        self.must_refresh = False
        self.read(self._workshop.open())

    def refresh_if_needed(self) -> bool:
        """Read what holds now if the copy may be outdated; answer whether it was read."""
        is_needed = self.must_refresh
        if is_needed:
            self.refresh()
        return is_needed

    def read(self, workspace: Workspace) -> Settings:
        """Return what holds for a workspace, as it was read there, and keep a copy."""
        entry = workspace.entry(workspace.names.settings)
        copy = self._copy
        if entry.revision == copy.revision:
            return copy
        record = decode(entry.data, _Record) if entry.data else _Record()
        settings = _settings_of(entry.revision, record)
        if entry.revision > copy.revision or not entry.revision:  # nothing there: the stream is another one
            self._copy = settings
        return settings

    def arrange(self, arrangement: PauseQueue | PutLimit | DropLimit) -> bool:
        """Change something for everybody; answer whether it was different before."""
        attempts: list[bool] = []  # one that was stored, and whose answer was lost, leaves nothing to change
        self._workshop.carry_through(lambda workspace: attempts.append(self._write(workspace, arrangement)))
        is_changed = any(attempts)
        if is_changed and not attempts[-1]:
            self._workshop.link.send([(f"{self._workshop.names.notes}settings", b"")])
        self.refresh()
        return is_changed

    def forget(self) -> None:
        """Begin anew: the stream is another one."""
        self._copy = Settings()
        self.must_refresh = True

    def _write(self, workspace: Workspace, arrangement: PauseQueue | PutLimit | DropLimit) -> bool:
        subject = workspace.names.settings
        before = workspace.get_struct(subject, _Record) or _Record()
        after = _changed(before, arrangement)
        if after == before:
            return False
        workspace.put_struct(subject, after)
        workspace.draft.send(f"{workspace.names.notes}settings")
        return True


def _settings_of(revision: int, record: _Record) -> Settings:
    limits = {limit.family: Limit(limit.most, limit.per) for limit in record.limits}
    return Settings(revision, frozenset(record.paused), limits, record.limits)


def _changed(record: _Record, arrangement: PauseQueue | PutLimit | DropLimit) -> _Record:
    if isinstance(arrangement, PauseQueue):
        paused = tuple(queue for queue in record.paused if queue != arrangement.queue)
        if arrangement.is_paused and arrangement.queue in record.paused:
            return record
        return _Record((*paused, arrangement.queue) if arrangement.is_paused else paused, record.limits)
    limits = {limit.family: limit for limit in record.limits}
    if isinstance(arrangement, PutLimit):
        limits[arrangement.family] = arrangement
    else:
        limits.pop(arrangement.family, None)
    return _Record(record.paused, tuple(limits.values()))
