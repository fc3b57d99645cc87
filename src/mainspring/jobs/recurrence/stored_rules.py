"""Encodes rules as JSON for the store, and decodes them. Equal rules have equal texts. Decoding is cached."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from mainspring.errors import MainspringError
from mainspring.jobs.recurrence.rules import Rule, rule_from
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord

REMEMBERED = 20_000

UNREADABLE = (MainspringError, msgspec.MsgspecError, TypeError, ValueError, LookupError)
"""The exceptions of `decode_rule` for a rule that another version has written and this one cannot read."""


def encode_rule(rule: Rule) -> str:
    """Encode a rule as the text that the store keeps."""
    return msgspec.json.encode(rule.describe(), order="sorted").decode()


@lru_cache(REMEMBERED)
def decode_rule(text: str) -> Rule:
    """Decode a rule. Raises one of `UNREADABLE` if a newer version has written it."""
    return rule_from(msgspec.json.decode(text, type=dict[str, Any]))


def rule_of(record: ScheduleRecord) -> Rule | None:
    """Return the rule of a schedule; None if this version cannot read it."""
    try:
        return decode_rule(record.rule)
    except UNREADABLE:
        return None
