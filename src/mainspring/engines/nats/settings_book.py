"""Settings that all processes share: paused queues and limits.

They are one record. A transaction that admits jobs reads it together with the gates (`read`), so a limit applies
from the moment it is stored. All other code uses a copy, which is refreshed when a note says that it is outdated.
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


class StoredSettings(Struct, frozen=True):
    """The settings as they are at one revision."""

    revision: int = 0
    paused: frozenset[str] = frozenset()
    limits: dict[str, Limit] = {}
    definitions: tuple[PutLimit, ...] = ()


class SettingsBook:
    """Reads and changes the settings. Any thread may read the copy."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._copy = StoredSettings()
        self.must_refresh = True
        """Whether the copy may be outdated; set on any thread."""

    @property
    def paused(self) -> frozenset[str]:
        """The queues from which no jobs start."""
        return self._copy.paused

    @property
    def limits(self) -> dict[str, Limit]:
        """The limits, by family."""
        return self._copy.limits

    def list_limits(self) -> list[PutLimit]:
        """Return the limits as they were defined, in the order of their first definition."""
        return list(self._copy.definitions)

    def refresh(self) -> None:
        """Read the current settings."""
        self.must_refresh = False
        self.read(self._workshop.open())

    def refresh_if_needed(self) -> bool:
        """Read the current settings if the copy may be outdated; return whether they were read."""
        is_needed = self.must_refresh
        if is_needed:
            self.refresh()
        return is_needed

    def read(self, workspace: Workspace) -> StoredSettings:
        """Return the settings as a transaction reads them, and update the copy."""
        entry = workspace.entry(workspace.names.settings)
        copy = self._copy
        if entry.revision == copy.revision:
            return copy
        record = decode(entry.data, _Record) if entry.data else _Record()
        settings = _settings_of(entry.revision, record)
        if entry.revision > copy.revision or not entry.revision:  # 0: the stream was created anew
            self._copy = settings
        return settings

    def arrange(self, arrangement: PauseQueue | PutLimit | DropLimit) -> bool:
        """Change a setting for all processes; return whether it was different before."""
        attempts: list[bool] = []  # if one was stored but its answer lost, the next changes nothing
        self._workshop.carry_through(lambda workspace: attempts.append(self._write(workspace, arrangement)))
        is_changed = any(attempts)
        if is_changed and not attempts[-1]:
            self._workshop.link.send([(f"{self._workshop.names.notes}settings", b"")])
        self.refresh()
        return is_changed

    def forget(self) -> None:
        """Discard the copy: the stream was created anew."""
        self._copy = StoredSettings()
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


def _settings_of(revision: int, record: _Record) -> StoredSettings:
    limits = {limit.family: Limit(limit.most, limit.per) for limit in record.limits}
    return StoredSettings(revision, frozenset(record.paused), limits, record.limits)


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
