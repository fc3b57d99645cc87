"""Cron expressions: their spelling, their aliases, and errors that name the field.

`cronsim` parses. Kept as it reads them, because Debian's cron and people do too: if day of month or day of week
begins with `*` (`*/2` does), a day must match both, else either; a step counts from the start of its range, so
`*/7` in the day of month starts again with each month; `5/15` means `5-59/15`; a step larger than the field leaves
its first value; Sunday is 0 and 7.
"""

from __future__ import annotations

from cronsim import CronSim, CronSimError

from mainspring.errors import ScheduleInvalid
from mainspring.jobs.recurrence.zones import to_wall

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

# Each field: its name, what is allowed there, an example.
_FIELDS = (
    ("second", "0 to 59", "*/10"),
    ("minute", "0 to 59", "*/5"),
    ("hour", "0 to 23", "9-17"),
    ("day of month", "1 to 31, L (the last day) or LW (the last weekday)", "1,15"),
    ("month", "1 to 12 or JAN to DEC", "JAN,JUL"),
    (
        "day of week",
        "0 to 7 or SUN to SAT (0 and 7 are Sunday), 5L (the last Friday) or 5#2 (the second)",
        "MON-FRI",
    ),
)
_START = to_wall(0)


def parse(expression: object) -> tuple[str, CronSim, CronSim]:
    """Return the expression in its one spelling, and its wall times forwards and backwards."""
    if not isinstance(expression, str):
        raise ScheduleInvalid(
            rule="cron",
            problem=f"the expression is {expression!r}, which is not text",
            remedy="give one such as '30 2 * * MON-FRI' or '@daily'",
        )
    text = " ".join(expression.split()).upper()
    if text.startswith("@"):
        text = text.lower()
        if text not in ALIASES:
            raise ScheduleInvalid(
                rule=f"cron {text!r}", problem="there is no such alias", remedy=f"give one of {', '.join(ALIASES)}"
            )
    fields = ALIASES.get(text, text)
    try:
        forward = CronSim(fields, _START)
        next(forward)
    except (CronSimError, ValueError, StopIteration):
        raise _explain(text, fields.split()) from None
    return text, forward, CronSim(fields, _START, reverse=True)


def _explain(text: str, parts: list[str]) -> ScheduleInvalid:
    """Find out what cronsim disliked: it names the field at most."""
    rule = f"cron {text!r}"
    if len(parts) not in {5, 6}:
        return ScheduleInvalid(
            rule=rule,
            problem=f"it has {len(parts)} fields",
            remedy="give 5 (minute, hour, day of month, month, day of week) or 6 with seconds first, "
            "such as '30 2 * * MON-FRI', or an alias such as @daily",
        )
    first = 6 - len(parts)
    for index, (part, (name, allowed, example)) in enumerate(zip(parts, _FIELDS[first:], strict=True), first):
        wrong = [term for term in part.split(",") if not _fits(index, term)]
        if wrong:
            within = "" if part == wrong[0] else f", where {wrong[0]!r} does not fit"
            return ScheduleInvalid(
                rule=rule,
                problem=f"{name} is {part!r}{within}",
                remedy=f"give {allowed}, as *, a list (1,3), a range from low to high (1-5) or steps (*/5); "
                f"for example {example!r}",
            )
    return ScheduleInvalid(
        rule=rule,
        problem=f"it never occurs: no year has a day with day of month {parts[-3]!r}, month {parts[-2]!r} "
        f"and day of week {parts[-1]!r}",
        remedy="give a day that exists, such as L for the last day of a month",
    )


def _fits(index: int, term: str) -> bool:
    fields = ["*"] * len(_FIELDS)
    fields[index] = term
    try:
        CronSim(" ".join(fields), _START)
    except (CronSimError, ValueError):  # ValueError: a number of thousands of digits
        return False
    return True
