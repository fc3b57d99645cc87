"""The options that choose jobs: `--status --queue --type --argument --since --until --text`.

`jobs list` and `jobs cancel` share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import asdict

from mainspring.app import Mainspring
from mainspring.cli.argument_parsing import parse_value, split_pairs
from mainspring.cli.options import STATUSES, parse_duration, parse_instant, queue_option, type_option
from mainspring.cli.output import print_message
from mainspring.jobs.audit import clip_names
from mainspring.jobs.search import OneOf
from mainspring.jobs.timestamps import to_datetime, to_past
from mainspring.similar_names import did_you_mean


def parse_past(text: str) -> datetime | timedelta:
    """Parse an instant, or a duration before now: `2h`, `2027-01-01T02:00:00+01:00`.

    Raises a usage error for other text.
    """
    try:
        return parse_duration(text)
    except click.BadParameter:
        pass
    try:
        return parse_instant(text)
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}; or a time before now: 90s, 30m, 2h, 7d") from None


class JobFilters(Struct, frozen=True, kw_only=True):
    """The filters of jobs that the options of a command set."""

    status: str | None
    queue: str | None
    type: str | None
    arguments: dict[str, Any]
    since: datetime | timedelta | None
    until: datetime | timedelta | None
    text: str | None

    @property
    def is_empty(self) -> bool:
        """Whether no filter was given."""
        return not any((self.status, self.queue, self.type, self.arguments, self.since, self.until, self.text))

    def options(self) -> dict[str, Any]:
        """Return the filters as arguments of `app.jobs`."""
        return asdict(self) | {"arguments": self.arguments or None}

    def audit_details(self, now: int) -> dict[str, Any]:
        """Return the filters for an audit entry, with the names of arguments, but without their values.

        The text of `--text` may be such a value, so the entry only says that there was one.
        """
        times = {
            name: to_datetime(to_past(moment, now, name)).isoformat()
            for name, moment in (("since", self.since), ("until", self.until))
            if moment is not None
        }
        given = {
            "status": self.status,
            "queue": self.queue,
            "type": self.type,
            "arguments": clip_names(self.arguments) or None,
            "text": True if self.text else None,
        }
        return {name: value for name, value in given.items() if value is not None} | times

    def report_unknown_names(self, application: Mainspring) -> None:
        """Print a message for each unknown queue, job type or argument in the filters, with similar names.

        Arguments are compared with the parameters of the handler, if the filters name a type with a handler here.
        """
        report_unknown_names(application, queue=self.queue, type=self.type)
        if self.type is not None:
            self._report_arguments(application, self.type)

    def _report_arguments(self, application: Mainspring, type_: str) -> None:
        registry = application.registry
        full_name = registry.full_name(type_)
        known = registry.get(full_name).arguments.names if full_name in registry else tuple(self.arguments)
        for argument in self.arguments:
            if argument not in known:
                remedy = did_you_mean(argument, known) or f"it has {', '.join(known) or 'none'}"
                print_message(f"mainspring: handler {full_name!r} has no parameter {argument!r}; {remedy}")


def report_unknown_names(application: Mainspring, *, queue: str | None, type: str | None) -> None:
    """Print a message if a filter names an unknown queue or job type, with known names that are spelt alike."""
    if queue is not None:
        from mainspring.cli.queues import report_unknown_queues  # noqa: PLC0415 - only if there are no jobs

        report_unknown_queues([queue], [known.name for known in application.all_queues()])
    if type is not None:
        report_unknown_type(application, type)


def report_unknown_type(application: Mainspring, name: str) -> None:
    """Print a message if there is no handler and no job of this type, with known types that are spelt alike."""
    registry = application.registry
    full_name = registry.full_name(name)
    if full_name in registry or any(application.counts(type=full_name).values()):
        return
    types = {*registry.names(), *(each for worker in application.workers() for each in worker.types)}
    short = sorted(each for each in types if each.rpartition(".")[2] == name)
    question = f"did you mean {short[0]!r}?" if short else did_you_mean(name, types)
    remedy = question or "mainspring jobs list shows the job types of all jobs"
    print_message(f"mainspring: there are no jobs of type {name!r}; {remedy}")


def _parse_arguments(_: click.Context, __: click.Parameter, pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `order_id=42` into a filter that matches the number 42 and the string "42"."""
    return {name: OneOf((parse_value(text), text)) for name, text in split_pairs(pairs).items()}


_OPTIONS = (
    click.option(
        "--status",
        type=click.Choice(STATUSES, case_sensitive=False),
        help="Only jobs with this status: pending, running, completed, failed or canceled.",
        metavar="STATUS",
    ),
    queue_option,
    type_option,
    click.option(
        "--argument",
        "arguments",
        multiple=True,
        callback=_parse_arguments,
        help="Only jobs that were submitted with this argument; if repeated, with all of these arguments.",
        metavar="NAME=VALUE",
    ),
    click.option(
        "--since",
        type=parse_past,
        help="Only jobs submitted from this time on: 2h (two hours ago), or 2027-01-01T02:00:00+01:00.",
        metavar="TIME",
    ),
    click.option("--until", type=parse_past, help="Only jobs submitted before this time.", metavar="TIME"),
    click.option("--text", help="Only jobs with this text in id, job type, arguments or error.", metavar="TEXT"),
)


def filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose jobs to a command, whose function gets them as one argument, `filters`."""

    @wraps(function)
    def with_filters(**given: Any) -> Any:
        names = JobFilters.__struct_fields__
        filters = JobFilters(**{name: given.pop(name) for name in names})
        return function(filters=filters, **given)

    for option in reversed(_OPTIONS):
        with_filters = option(with_filters)
    return with_filters
