"""The settings that all processes share: pauses, limits, quotas, dead-letter handlers, redacted parameters.

They are stored in one record. A transaction that admits jobs reads this record together with the limiters, so a
limit applies from the moment it is stored. All other code uses a cached copy, which is refreshed after a
notification of a change.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats.audit import RecordArrangement, record_nothing
from mainspring.engines.nats.job_records import decode
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.jobs.callback_pauses import CallbackPauseRecord, replace_pause
from mainspring.jobs.commands import (
    ChangeCallbackPause,
    DropDeadLetterHandler,
    DropLimit,
    DropRedaction,
    PauseQueue,
    PutDeadLetterHandler,
    PutLimit,
    PutRedaction,
)
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler
from mainspring.jobs.limits import Limit
from mainspring.jobs.quotas import Quota, quotas_of


class _SettingsRecord(Struct, frozen=True, array_like=True):
    paused: tuple[str, ...] = ()
    limits: tuple[PutLimit, ...] = ()
    dead_letter_handlers: tuple[DeadLetterHandler, ...] = ()
    redactions: tuple[PutRedaction, ...] = ()
    callback_pauses: tuple[CallbackPauseRecord, ...] = ()


SettingsChange: TypeAlias = (
    PauseQueue
    | PutLimit
    | DropLimit
    | PutDeadLetterHandler
    | DropDeadLetterHandler
    | PutRedaction
    | DropRedaction
    | ChangeCallbackPause
)


class StoredSettings(Struct, frozen=True):
    """The settings that all processes share, with the revision of their record."""

    revision: int = 0
    paused: frozenset[str] = frozenset()
    limits: dict[str, Limit] = {}
    definitions: tuple[PutLimit, ...] = ()
    dead_letter_handlers: tuple[DeadLetterHandler, ...] = ()
    quotas: dict[str, Quota] = {}
    """The submit quotas among the limits, by queue."""
    redactions: tuple[PutRedaction, ...] = ()
    callback_pauses: tuple[CallbackPauseRecord, ...] = ()


class SettingsCache:
    """Caches and changes the settings that all processes share. Any thread may read the cached copy."""

    def __init__(self, transactions: TransactionManager) -> None:
        self._transactions = transactions
        self._copy = StoredSettings()
        self._must_refresh = self._are_quotas_outdated = True

    @property
    def must_refresh(self) -> bool:
        """Whether the cached copy may be outdated. Any thread may set it."""
        return self._must_refresh

    @must_refresh.setter
    def must_refresh(self, value: bool) -> None:
        self._must_refresh = value
        self._are_quotas_outdated |= value  # submits read the settings apart from the thread that claims jobs

    def current_quotas(self) -> dict[str, Quota]:
        """Return the submit quotas, by queue; read the settings first if the cached copy may be outdated."""
        if self._are_quotas_outdated:
            self._are_quotas_outdated = False
            try:
                self.read(self._transactions.begin())
            except BaseException:
                self._are_quotas_outdated = True
                raise
        return self._copy.quotas

    @property
    def paused(self) -> frozenset[str]:
        """The paused queues in the cached copy: none of their jobs start."""
        return self._copy.paused

    @property
    def limits(self) -> dict[str, Limit]:
        """The limits in the cached copy, by name."""
        return self._copy.limits

    @property
    def dead_letter_handlers(self) -> tuple[DeadLetterHandler, ...]:
        """The dead-letter handlers in the cached copy, ordered by job type."""
        return self._copy.dead_letter_handlers

    def redactions(self) -> dict[str, tuple[str, ...]]:
        """Read the redacted parameters from the server, and return them by job type.

        This never uses the cached copy: if the notification of a change is late or lost, a secret would be shown.
        """
        settings = self.read(self._transactions.begin())
        return {each.type: each.parameters for each in settings.redactions}

    def callback_pauses(self) -> tuple[CallbackPauseRecord, ...]:
        """Read the paused receivers of callbacks from the server, and return them."""
        return self.read(self._transactions.begin()).callback_pauses

    def list_limits(self) -> list[PutLimit]:
        """Return the limits of the cached copy as they were defined, in the order of their first definition."""
        return list(self._copy.definitions)

    def refresh(self) -> None:
        """Read the shared settings from the server into the cached copy."""
        self.must_refresh = False
        self.read(self._transactions.begin())

    def refresh_if_needed(self) -> bool:
        """Read the shared settings if the cached copy may be outdated; return whether they were read."""
        is_needed = self.must_refresh
        if is_needed:
            self.refresh()
        return is_needed

    def read(self, transaction: Transaction) -> StoredSettings:
        """Read the shared settings in a transaction and return them. A cached copy that is older is replaced."""
        entry = transaction.stored(transaction.names.settings)
        copy = self._copy
        if entry.revision == copy.revision:
            return copy
        record = decode(entry.data, _SettingsRecord) if entry.data else _SettingsRecord()
        settings = _settings_of(entry.revision, record)
        # revision 0 means that the stream was created again
        if entry.revision > copy.revision or not entry.revision:
            self._copy = settings
        return settings

    def change(self, arrangement: SettingsChange, record: RecordArrangement = record_nothing) -> bool:
        """Change a shared setting for all processes; return whether it was different before.

        If it was, `record` is called in the same transaction.
        """
        # whether each attempt changed the record: after a lost reply, the next attempt changes nothing
        attempts: list[bool] = []

        def work(transaction: Transaction) -> None:
            attempts.append(self._write(transaction, arrangement))
            if attempts[-1]:
                record(transaction, None)

        self._transactions.run(work)
        is_changed = any(attempts) and (attempts[-1] or self._is_stored(arrangement))
        if is_changed and not attempts[-1]:
            self._transactions.jetstream.send([(f"{self._transactions.names.notifications}settings", b"")])
        self.refresh()
        return is_changed

    def _is_stored(self, arrangement: SettingsChange) -> bool:
        """Return whether an earlier attempt stored a change, as far as the record shows.

        Another process may have replaced the same record of a paused receiver. Every other change states what is
        stored then, so it does not matter which process has stored it.
        """
        if not isinstance(arrangement, ChangeCallbackPause):
            return True
        pauses = self.callback_pauses()
        return arrangement.before not in pauses if arrangement.after is None else arrangement.after in pauses

    def clear(self) -> None:
        """Discard the cached copy, because the stream was created again."""
        self._copy = StoredSettings()
        self.must_refresh = True

    def _write(self, transaction: Transaction, arrangement: SettingsChange) -> bool:
        subject = transaction.names.settings
        before = transaction.get_struct(subject, _SettingsRecord) or _SettingsRecord()
        after = _changed(before, arrangement)
        if after == before:
            return False
        transaction.put_struct(subject, after)
        transaction.batch.send(f"{transaction.names.notifications}settings")
        return True


def _settings_of(revision: int, record: _SettingsRecord) -> StoredSettings:
    limits = {limit.family: Limit(limit.most, limit.per) for limit in record.limits}
    return StoredSettings(
        revision,
        frozenset(record.paused),
        limits,
        record.limits,
        record.dead_letter_handlers,
        quotas_of(limits),
        record.redactions,
        record.callback_pauses,
    )


def _changed(record: _SettingsRecord, arrangement: SettingsChange) -> _SettingsRecord:
    match arrangement:
        case PauseQueue(queue, is_paused):
            if is_paused and queue in record.paused:
                return record
            paused = tuple(other for other in record.paused if other != queue)
            return replace(record, paused=(*paused, queue) if is_paused else paused)
        case PutLimit() | DropLimit():
            limits = {limit.family: limit for limit in record.limits}
            if isinstance(arrangement, PutLimit):
                limits[arrangement.family] = arrangement
            else:
                limits.pop(arrangement.family, None)
            return replace(record, limits=tuple(limits.values()))
        case PutDeadLetterHandler() | DropDeadLetterHandler():
            handlers = {handler.type: handler for handler in record.dead_letter_handlers}
            if isinstance(arrangement, PutDeadLetterHandler):
                handlers[arrangement.handler.type] = arrangement.handler
            else:
                handlers.pop(arrangement.type, None)
            return replace(record, dead_letter_handlers=tuple(handlers[name] for name in sorted(handlers)))
        case ChangeCallbackPause(before, after):
            pauses = replace_pause(record.callback_pauses, before, after)
            return record if pauses is None else replace(record, callback_pauses=pauses)
        case PutRedaction() | DropRedaction():
            redacted = {each.type: each.parameters for each in record.redactions}
            if isinstance(arrangement, PutRedaction):
                known = redacted.get(arrangement.type, ())
                redacted[arrangement.type] = tuple(sorted({*known, *arrangement.parameters}))
            else:
                redacted.pop(arrangement.type, None)
            return replace(
                record, redactions=tuple(PutRedaction(name, redacted[name]) for name in sorted(redacted))
            )
