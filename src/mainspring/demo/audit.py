"""Audits the journal of the demo: counts its events, then compares them with the promises of the shop."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from mainspring import JobStatus
from mainspring.demo.journal import JournalEntry, OrderEvent
from mainspring.demo.orders import app, customer_of, timer_of

STEPS = (OrderEvent.CHARGED, OrderEvent.PACKED, OrderEvent.MAILED)
ENDS = (OrderEvent.CANCELED, *STEPS, OrderEvent.REPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutage:
    """The period in which the demo had no worker, after it killed its worker; Unix times in seconds."""

    begin: float
    end: float

    def delayed(self, start: JournalEntry) -> bool:
        """Return whether a job may have started late because no worker ran.

        That is so if the job was due before the outage ended, and started after the outage began.
        """
        return start.due <= self.end and start.at >= self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingFigures:
    """The figures that the demo prints at its end."""

    submitted: int
    paid: int
    """The number of orders that were paid in time. Their time-out jobs were canceled and must never have run."""
    paid_late: int
    """The number of orders that were paid after their time-out job had started."""
    paid_late_and_kept: int
    """How many of `paid_late` were not canceled: their time-out job failed, and the payment ended its retries."""
    cancelled: int
    retried: int
    failed_attempts: int
    dead: int
    replayed: int
    lost: int
    cancelled_though_paid: int
    run_twice: int
    run_twice_unexplained: int
    lateness_p50_ms: float
    lateness_p99_ms: float
    held_up_by_kill: int
    held_up_longest_ms: float
    parcels: int
    """The number of orders to charge, pack and mail: those that regular customers have paid in time."""
    parcels_held_up: int
    """The part of `parcels` whose charge was retried because the service was down.

    No later job of the customer overtook it.
    """
    parcels_unfinished: int
    steps_out_of_order: int
    nights: int
    """The number of nights for which the schedule must write a report."""
    nights_without_report: int

    @property
    def complaints(self) -> list[str]:
        """The promises of the shop that were broken, as texts with counts; empty if all were kept."""
        found = {
            "lost orders": self.lost,
            "orders canceled although they were paid in time": self.cancelled_though_paid,
            "jobs run twice although the kill did not interrupt them": self.run_twice_unexplained,
            "dead letters not replayed": self.dead - self.replayed,
            "parcels that were not charged, packed and mailed": self.parcels_unfinished,
            "steps of parcels out of order": self.steps_out_of_order,
            "nights without a report": self.nights_without_report,
        }
        return [f"{what}: {count:,}" for what, count in found.items() if count]


class OrderAudit:
    """Counts the journal entries so far, by order and by job."""

    def __init__(self) -> None:
        self._orders: dict[OrderEvent, set[int]] = {event: set() for event in OrderEvent}
        self._jobs: dict[str, Counter[OrderEvent]] = {}
        self._starts: list[JournalEntry] = []
        self._promised: dict[int | None, list[tuple[OrderEvent, int]]] = {}
        self._steps: dict[int | None, list[tuple[OrderEvent, int]]] = {}
        self.reports: dict[
            str, JournalEntry
        ] = {}  # by job, because a job that the kill interrupts writes its report again

    def add(self, entries: list[JournalEntry]) -> None:
        """Add entries of the journal to the counts."""
        for entry in entries:
            self._orders[entry.event].add(entry.order)
            self._jobs.setdefault(entry.job, Counter())[entry.event] += 1
            if entry.event is OrderEvent.STARTED:
                self._starts.append(entry)
            elif entry.event is OrderEvent.PARCEL:
                promised = self._promised.setdefault(customer_of(entry.order), [])
                promised += [(step, entry.order) for step in STEPS]
            elif entry.event in STEPS:
                self._steps.setdefault(customer_of(entry.order), []).append((entry.event, entry.order))
            elif entry.event is OrderEvent.REPORTED:
                self.reports.setdefault(entry.job, entry)

    def count(self, event: OrderEvent) -> int:
        """Return how many orders have an entry with this event in the journal."""
        return len(self._orders[event])

    def in_flight(self) -> list[str]:
        """Return the ids of the time-outs (jobs that cancel an order) that have started and not ended."""
        return [job for job, events in self._jobs.items() if _unended_starts(events) > 0]

    @property
    def parcels(self) -> set[int]:
        """The paid orders of regular customers. Each must be charged, packed and mailed by the end."""
        return {order for order in self._orders[OrderEvent.PAID] if customer_of(order) is not None}

    def close(self, *, replayed: int, outage: WorkerOutage, nights: int) -> ClosingFigures:
        """Compare the promises of the shop with the counted events and the jobs; return the closing figures."""
        placed, paid, canceled = (
            self._orders[event] for event in (OrderEvent.PLACED, OrderEvent.PAID, OrderEvent.CANCELED)
        )
        late = self._orders[OrderEvent.PAID_LATE]
        kept = {order for order in late - canceled if app.get(timer_of(order)).status is JobStatus.CANCELED}
        twice = [job for job, events in self._jobs.items() if _surplus_runs(events) > 0]
        on_time = [(start.at - start.due) * 1_000 for start in self._starts if not outage.delayed(start)]
        held_up = [(start.at - start.due) * 1_000 for start in self._starts if outage.delayed(start)]
        parcels = self.parcels
        return ClosingFigures(
            submitted=len(placed),
            paid=len(paid),
            paid_late=len(late),
            paid_late_and_kept=len(kept),
            cancelled=len(canceled),
            retried=sum(events[OrderEvent.REFUSED] > 0 for events in self._jobs.values()),
            failed_attempts=sum(events[OrderEvent.REFUSED] for events in self._jobs.values()),
            dead=sum(1 for _ in _dead_letters()),
            replayed=replayed,
            lost=len(placed - paid - kept - canceled),
            cancelled_though_paid=len(paid & canceled),
            run_twice=len(twice),
            run_twice_unexplained=sum(app.get(job).crashes == 0 for job in twice),
            lateness_p50_ms=_percentile(on_time, 0.5),
            lateness_p99_ms=_percentile(on_time, 0.99),
            held_up_by_kill=len(held_up),
            held_up_longest_ms=max(held_up, default=0.0),
            parcels=len(parcels),
            parcels_held_up=self.count(OrderEvent.HELD_UP),
            parcels_unfinished=sum(any(order not in self._orders[step] for step in STEPS) for order in parcels),
            steps_out_of_order=sum(map(self._steps_out_of_order, self._promised)),
            nights=nights,
            nights_without_report=nights - len({report.due for report in self.reports.values()}),
        )

    def _steps_out_of_order(self, customer: int | None) -> int:
        """Count a customer's steps (charge, pack, mail) that were not done in the promised order.

        A step that is repeated directly, after the kill, counts once.
        """
        steps = self._steps.get(customer, [])
        done = [step for place, step in enumerate(steps) if place == 0 or step != steps[place - 1]]
        promised = self._promised[customer]
        return sum(one != other for one, other in zip_longest(done, promised))


def _unended_starts(events: Counter[OrderEvent]) -> int:
    return events[OrderEvent.STARTED] - events[OrderEvent.REFUSED] - events[OrderEvent.CANCELED]


def _surplus_runs(events: Counter[OrderEvent]) -> int:
    """Count the surplus runs of a job: starts without an end, and each end of a kind after the first one."""
    return max(0, _unended_starts(events)) + sum(max(0, events[end] - 1) for end in ENDS)


def _dead_letters() -> Iterator[str]:
    page = app.jobs(status=JobStatus.FAILED, limit=500)
    while page:
        yield from (job.id for job in page)
        if page.next is None:
            return
        page = app.jobs(status=JobStatus.FAILED, limit=500, after=page.next)


def _percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[int(share * (len(samples) - 1))] if samples else 0.0
