"""What the journal adds up to: counts while the shop is open, and the closing figures with their checks."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from mainspring import JobStatus
from mainspring.demo.journal import Entry, Event
from mainspring.demo.orders import app, customer_of, timer_of

STEPS = (Event.CHARGED, Event.PACKED, Event.MAILED)
ENDS = (Event.CANCELLED, *STEPS, Event.REPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The time in which no worker was there."""

    begin: float
    end: float

    def delayed(self, start: Entry) -> bool:
        """Whether this run is late because it had to wait for a worker."""
        return start.due <= self.end and start.at >= self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The closing figures."""

    submitted: int
    paid: int
    """In time: the time-out was called off and must never have run."""
    paid_late: int
    """While the time-out was running or after it."""
    paid_late_and_kept: int
    """Of these: the attempt failed, and the request to stop kept it from being tried again."""
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
    """Orders of regular customers, paid in time: to be charged, packed and mailed."""
    parcels_held_up: int
    """Of these: the service was down, so the charge was retried, and nothing of this customer overtook it."""
    parcels_unfinished: int
    steps_out_of_order: int
    nights: int
    """Occurrences of the nightly report's schedule."""
    nights_without_report: int

    @property
    def complaints(self) -> list[str]:
        """Say what must not happen and did."""
        found = {
            "lost orders": self.lost,
            "orders cancelled although their time-out had been called off": self.cancelled_though_paid,
            "jobs run twice without having been in flight at the kill": self.run_twice_unexplained,
            "dead letters not replayed": self.dead - self.replayed,
            "parcels that were not charged, packed and mailed": self.parcels_unfinished,
            "steps of parcels out of order": self.steps_out_of_order,
            "nights without a report": self.nights_without_report,
        }
        return [f"{what}: {count:,}" for what, count in found.items() if count]


class Books:
    """Everything that the journal said so far."""

    def __init__(self) -> None:
        self._orders: dict[Event, set[int]] = {event: set() for event in Event}
        self._jobs: dict[str, Counter[Event]] = {}
        self._starts: list[Entry] = []
        self._promised: dict[int | None, list[tuple[Event, int]]] = {}
        self._steps: dict[int | None, list[tuple[Event, int]]] = {}
        self.reports: dict[str, Entry] = {}  # by job: one that the kill interrupts writes its report again

    def add(self, entries: list[Entry]) -> None:
        """Enter what happened."""
        for entry in entries:
            self._orders[entry.event].add(entry.order)
            self._jobs.setdefault(entry.job, Counter())[entry.event] += 1
            if entry.event is Event.STARTED:
                self._starts.append(entry)
            elif entry.event is Event.PARCEL:
                promised = self._promised.setdefault(customer_of(entry.order), [])
                promised += [(step, entry.order) for step in STEPS]
            elif entry.event in STEPS:
                self._steps.setdefault(customer_of(entry.order), []).append((entry.event, entry.order))
            elif entry.event is Event.REPORTED:
                self.reports.setdefault(entry.job, entry)

    def count(self, event: Event) -> int:
        """Count the orders to which this has happened."""
        return len(self._orders[event])

    def in_flight(self) -> list[str]:
        """Return the jobs that have begun and not ended."""
        return [job for job, events in self._jobs.items() if _unfinished(events) > 0]

    @property
    def parcels(self) -> set[int]:
        """The orders that must be charged, packed and mailed."""
        return {order for order in self._orders[Event.PAID] if customer_of(order) is not None}

    def close(self, *, replayed: int, outage: Outage, nights: int) -> Figures:
        """Compare what was promised with what happened."""
        placed, paid, cancelled = (self._orders[event] for event in (Event.PLACED, Event.PAID, Event.CANCELLED))
        late = self._orders[Event.PAID_LATE]
        kept = {order for order in late - cancelled if app.get(timer_of(order)).status is JobStatus.CANCELED}
        twice = [job for job, events in self._jobs.items() if _surplus(events) > 0]
        on_time = [(start.at - start.due) * 1_000 for start in self._starts if not outage.delayed(start)]
        held_up = [(start.at - start.due) * 1_000 for start in self._starts if outage.delayed(start)]
        parcels = self.parcels
        return Figures(
            submitted=len(placed),
            paid=len(paid),
            paid_late=len(late),
            paid_late_and_kept=len(kept),
            cancelled=len(cancelled),
            retried=sum(events[Event.REFUSED] > 0 for events in self._jobs.values()),
            failed_attempts=sum(events[Event.REFUSED] for events in self._jobs.values()),
            dead=sum(1 for _ in _dead_letters()),
            replayed=replayed,
            lost=len(placed - paid - kept - cancelled),
            cancelled_though_paid=len(paid & cancelled),
            run_twice=len(twice),
            run_twice_unexplained=sum(app.get(job).crashes == 0 for job in twice),
            lateness_p50_ms=_percentile(on_time, 0.5),
            lateness_p99_ms=_percentile(on_time, 0.99),
            held_up_by_kill=len(held_up),
            held_up_longest_ms=max(held_up, default=0.0),
            parcels=len(parcels),
            parcels_held_up=self.count(Event.HELD_UP),
            parcels_unfinished=sum(any(order not in self._orders[step] for step in STEPS) for order in parcels),
            steps_out_of_order=sum(map(self._misplaced, self._promised)),
            nights=nights,
            nights_without_report=nights - len({report.due for report in self.reports.values()}),
        )

    def _misplaced(self, customer: int | None) -> int:
        """Count the steps that differ from what was promised; one that the kill had repeated counts once."""
        steps = self._steps.get(customer, [])
        done = [step for place, step in enumerate(steps) if place == 0 or step != steps[place - 1]]
        promised = self._promised[customer]
        return sum(one != other for one, other in zip_longest(done, promised))


def _unfinished(events: Counter[Event]) -> int:
    return events[Event.STARTED] - events[Event.REFUSED] - events[Event.CANCELLED]


def _surplus(events: Counter[Event]) -> int:
    """Count the runs that should not have been needed: cut off by the kill, or repeated after their success."""
    return max(0, _unfinished(events)) + sum(max(0, events[end] - 1) for end in ENDS)


def _dead_letters() -> Iterator[str]:
    page = app.jobs(status=JobStatus.FAILED, limit=500)
    while page:
        yield from (job.id for job in page)
        if page.next is None:
            return
        page = app.jobs(status=JobStatus.FAILED, limit=500, after=page.next)


def _percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[int(share * (len(samples) - 1))] if samples else 0.0
