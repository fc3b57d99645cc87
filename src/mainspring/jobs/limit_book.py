"""Which limits hold for which jobs: those of its handler, and those of its queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mainspring.jobs.commands import DropLimit, PutLimit
from mainspring.jobs.handlers import Handler
from mainspring.jobs.limits import Limit, bucket_of
from mainspring.jobs.policies import Concurrency, Rate, names_of
from mainspring.runners.checks import require_instance


@dataclass(frozen=True, slots=True)
class Family:
    """A limit as it is declared: a bucket for each value of some parameters."""

    name: str
    limit: Limit
    by: tuple[str, ...]

    def bucket(self, handler: Handler, given: Mapping[str, Any]) -> str:
        """Return the bucket of a job with these arguments."""
        return bucket_of(self.name, handler.arguments.key(given, self.by) if self.by else "")


class LimitBook:
    """The limits that this process knows."""

    def __init__(self) -> None:
        self._queues: dict[str, tuple[Family, ...]] = {}
        self._found: dict[tuple[Handler, str], tuple[Family, ...]] = {}  # what was looked up: each submit asks

    def limit_queue(self, queue: str, concurrency: Concurrency | None, rate: Rate | None) -> None:
        """Declare the limits of a queue."""
        if concurrency is not None:
            require_instance(concurrency, Concurrency, "concurrency", "Concurrency(5)")
        if rate is not None:
            require_instance(rate, Rate, "rate", "Rate(10, per=60)")
        self._queues[queue] = _families(f"queue {queue}", concurrency, rate)
        self._found.clear()

    def queues(self) -> tuple[str, ...]:
        """Return the queues that have limits."""
        return tuple(self._queues)

    def of_queue(self, queue: str) -> tuple[Family, ...]:
        """Return the limits of a queue."""
        return self._queues.get(queue, ())

    def families(self, handler: Handler, queue: str) -> tuple[Family, ...]:
        """Return the limits of a job."""
        found = self._found.get((handler, queue))
        if found is None:
            options = handler.options
            own = _families(f"handler {handler.name}", options.concurrency, options.rate)
            found = self._found[handler, queue] = own + self.of_queue(queue)
        return found

    def buckets(self, handler: Handler, queue: str, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the buckets of a job with these arguments."""
        families = self.families(handler, queue)
        return tuple(family.bucket(handler, given) for family in families) if families else ()

    def arrangements(self, handlers: Iterable[Handler]) -> list[PutLimit | DropLimit]:
        """Tell a store what holds now: limits that are declared, and those of these handlers that are not."""
        known_handlers = list(handlers)
        declared = [family for handler in known_handlers for family in self.families(handler, "")]
        declared += [family for families in self._queues.values() for family in families]
        known = {family.name for family in declared}
        mentioned = [f"handler {handler.name}" for handler in known_handlers]
        mentioned += [f"queue {queue}" for queue in self._queues]
        possible = [f"{kind} of {name}" for name in mentioned for kind in ("concurrency", "rate")]
        puts = [PutLimit(family.name, family.limit.most, family.limit.per, family.by) for family in declared]
        return [*puts, *(DropLimit(name) for name in possible if name not in known)]


def _families(of: str, concurrency: Concurrency | None, rate: Rate | None) -> tuple[Family, ...]:
    policies = (("concurrency", concurrency), ("rate", rate))
    return tuple(
        Family(f"{kind} of {of}", policy.limit, names_of(policy.by))
        for kind, policy in policies
        if policy is not None
    )
