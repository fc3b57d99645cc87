"""Redacted parameters: `@app.job(redact=("card",))`. Their values appear in no list, text or search.

The worker masks their values in the errors and progress notes of the job before it stores or logs them. Every
other process shows `REDACTED` in place of the values: see `Redactions.show`. A process without the handler, such
as the command line with `--url`, reads from the store which parameters are redacted. Any process with the handler
stores that before its first submit, and a worker at its start.

Invariants
- The store gets the names of redacted parameters before the first job with redacted arguments. A reader reads the
  jobs first and the names afterwards, so it knows the names for every job that it has read.
- Names are only added. Code of an earlier version, which does not have `redact=` yet, removes none.
- The arguments in the store are complete. They are not encrypted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mainspring.jobs.masking import REDACTED, TextMask

if TYPE_CHECKING:
    from mainspring.jobs.arguments import Arguments
    from mainspring.jobs.explanation import Explanation
    from mainspring.jobs.info import JobInfo
    from mainspring.jobs.records import JobRecord
    from mainspring.jobs.serializers import Serializers

RedactedNames = Mapping[str, tuple[str, ...]]
"""The names of redacted parameters, by job type."""


class Redactions:
    """The redacted parameters of all job types: those that the store has and those that this process declares."""

    def __init__(self, *sources: RedactedNames) -> None:
        names: dict[str, dict[str, None]] = {}
        for source in sources:
            for type_, parameters in source.items():
                names.setdefault(type_, {}).update(dict.fromkeys(parameters))
        self._names = {type_: tuple(parameters) for type_, parameters in names.items()}

    def names(self, type_: str) -> tuple[str, ...]:
        """Return the redacted parameters of a job type; an empty tuple if it has none."""
        return self._names.get(type_, ())

    def show(self, type_: str, arguments: Any) -> Any:
        """Return the decoded arguments of a job with "[redacted]" in place of the values of redacted
        parameters.
        """
        return redact(arguments, self.names(type_))

    def show_info(self, info: JobInfo) -> JobInfo:
        """Return a snapshot of a job without redacted values: in its arguments and in all its texts."""
        names = self.names(info.type)
        if not names:
            return info
        mask = mask_of_plain(info.arguments, names)
        progress = info.progress
        return replace(
            info,
            arguments=redact(info.arguments, names),
            error=mask.optional(info.error),
            warning=mask.optional(info.warning),
            history=tuple(replace(attempt, error=mask(attempt.error)) for attempt in info.history),
            sequence=mask.optional(info.sequence),
            unique_key=mask.optional(info.unique_key),
            limits=tuple(map(mask, info.limits)),
            headers={name: mask(value) for name, value in info.headers.items()},
            progress=None if progress is None else replace(progress, note=mask.optional(progress.note)),
        )

    def show_explanation(
        self, explanation: Explanation, records: Iterable[JobRecord], serializers: Serializers
    ) -> Explanation:
        """Return an explanation with the redacted values of the jobs `records`, which it is about, masked in its
        text.
        """
        for record in records:
            mask = self.mask_of(record, serializers)
            if mask is not None:
                remedy = mask.optional(explanation.remedy)
                explanation = replace(explanation, text=mask(explanation.text), remedy=remedy)
        return explanation

    def mask_of(self, record: JobRecord, serializers: Serializers) -> TextMask | None:
        """Return the mask that hides the redacted values of a stored job in texts; None if its type redacts
        nothing.
        """
        names = self.names(record.type)
        return mask_of_plain(serializers.decode_any(record.payload, record.codec), names) if names else None

    def require_searchable(
        self, parameters: Iterable[str], type_: str | None, readable: Iterable[str] | None = None
    ) -> None:
        """Raise `ValueError` if one of the parameters that a filter names is redacted.

        Without a job type, a parameter is refused if any job type redacts it. `readable` are the types that the
        caller may read; None for all. Types that are not readable are ignored, so that the error names none of
        them.
        """
        types = sorted(self._names) if type_ is None else [type_]
        allowed = None if readable is None else frozenset(readable)
        for parameter in parameters:
            for each in types:
                if allowed is not None and each not in allowed:
                    continue
                if parameter in self.names(each):
                    remedy = "" if type_ is not None else ", or give the type of the jobs, if you mean another one"
                    raise ValueError(
                        f"jobs cannot be found by {parameter!r}, because the job type {each!r} redacts this "
                        f"parameter (redact=); filter by other parameters{remedy}"
                    )


def redact(arguments: Any, names: Iterable[str]) -> Any:
    """Return decoded arguments with `REDACTED` in place of the values of the parameters `names`.

    Arguments that this process could not decode are redacted as a whole, unless `names` is empty.
    """
    names = tuple(names)
    if not names:
        return arguments
    if not isinstance(arguments, Mapping):
        return REDACTED
    return {name: REDACTED if name in names else value for name, value in arguments.items()}


def mask_of_plain(arguments: Any, names: Iterable[str]) -> TextMask:
    """Return the mask that hides the values of the parameters `names` in texts about a job with these arguments.

    Of arguments that this process could not decode, it hides all.
    """
    if not isinstance(arguments, Mapping):
        return TextMask((arguments,))
    return TextMask([arguments[name] for name in names if name in arguments])


def mask_of_payloads(
    arguments: Arguments, names: Iterable[str], payloads: Iterable[tuple[bytes, str]]
) -> TextMask:
    """Return the mask that hides redacted values in the texts of a handler that ran with these jobs.

    `payloads` are the encoded arguments of each job with their codec. The mask covers the stored forms of the
    values and the objects that the handler got.
    """
    names = tuple(names)
    values: list[Any] = []
    for payload, codec in payloads:
        plain = arguments.plain(payload, codec)
        values += [plain[name] for name in names if name in plain] if isinstance(plain, Mapping) else [plain]
        values += arguments.decoded(payload, codec, names)
    return TextMask(values)
