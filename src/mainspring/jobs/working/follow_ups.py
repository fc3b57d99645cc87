"""Follow-ups: the job that is stored in the same step that completes its predecessor, whose result it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from mainspring.jobs.arguments import Arguments
from mainspring.jobs.handlers import Registry
from mainspring.jobs.instants import LAST_INSTANT
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import FollowUp, Lease, NewJob
from mainspring.jobs.serializers import JsonSerializer, Serializer


def _anything(**arguments: Any) -> None: ...


_UNKNOWN = Arguments("a handler that is not known here", _anything, JsonSerializer())


class FollowUps:
    """Makes the jobs that follow others."""

    def __init__(self, registry: Registry, new_id: Callable[[], str], now: Callable[[], int]) -> None:
        self._registry = registry
        self._new_id = new_id
        self._now = now

    def make(self, lease: Lease, plan: FollowUp, result: bytes, serializer: Serializer) -> NewJob:
        """Make the job that follows, with the result as its argument and the headers of its predecessor."""
        due = min(LAST_INSTANT, self._now() + plan.delay)
        arguments = {} if plan.argument is None else {plan.argument: msgspec.Raw(result)}
        return NewJob(
            self._new_id(),
            plan.type,
            plan.queue,
            plan.priority,
            due,
            bytes(serializer.encode(arguments)),
            lease.codec,
            sequence=plan.sequence,
            steps_aside=plan.steps_aside,
            limits=self._buckets(plan, result, serializer),
            expires=None if plan.expires is None else min(LAST_INSTANT, due + plan.expires),
            headers=lease.headers,
            follow_up=plan.follow_up,
        )

    def _buckets(self, plan: FollowUp, result: bytes, serializer: Serializer) -> tuple[str, ...]:
        if not any(names for _, names in plan.limits):
            return tuple(bucket_of(family) for family, _ in plan.limits)
        given = {} if plan.argument is None else {plan.argument: serializer.decoder(Any).decode(result)}
        known = self._registry.get(plan.type).arguments if plan.type in self._registry else _UNKNOWN
        return tuple(bucket_of(family, known.key(given, names) if names else "") for family, names in plan.limits)
