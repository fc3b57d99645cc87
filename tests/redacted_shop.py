"""Jobs with secrets in redacted parameters, that fail in every way, and everything that users can see of them.

Child processes import this module for its handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from traceback import TracebackException
from typing import Any

from mainspring import DeadLetter, JobFailed, JobFunction, Mainspring, Retry, current_job
from mainspring.jobs.context import JobContext
from mainspring.jobs.middleware import AttemptEnd, Middleware
from tests.support import PATIENCE

REDACTED = "[redacted]"
TEXT, NESTED, LISTED, OWNED, KEYED = (f"canary-{name}" for name in ("text", "nested", "listed", "owned", "keyed"))
NUMBER, PIN, PRICE = 987_654_321, 864_209, "13579.2468"
CANARIES = ("canary", str(NUMBER), f"{NUMBER:,}", str(PIN), PRICE)

SECRET_NAMES = ("token", "data", "number", "price", "card")
ONE_RETRY = Retry(max_attempts=2, base=0)


@dataclass
class Card:
    owner: str
    pin: int


SECRETS: dict[str, Any] = {
    "token": TEXT,
    "data": {"cvc": NESTED, "tags": [LISTED], KEYED: 1},
    "number": NUMBER,
    "price": Decimal(PRICE),
    "card": Card(OWNED, PIN),
}


def charge(*, order: int, token: str, data: dict[str, Any], number: int, price: Decimal, card: Card) -> None:
    """Report progress and fail, with the secrets in every text."""
    current_job().progress(1, 2, f"charging {card} with {token}")
    raise_with_secrets(order=order, token=token, data=data, number=number, price=price, card=card)


async def charge_async(
    *, order: int, token: str, data: dict[str, Any], number: int, price: Decimal, card: Card
) -> None:
    raise_with_secrets(order=order, token=token, data=data, number=number, price=price, card=card)


def charge_in_child(
    *, order: int, token: str, data: dict[str, Any], number: int, price: Decimal, card: Card
) -> None:
    current_job().progress(1, 2, f"charging {card} with {token}")
    raise_with_secrets(order=order, token=token, data=data, number=number, price=price, card=card)


def charge_batch(cards: list[Card]) -> list[Exception | None]:
    """Fail for each card, with an exception that names another one, too."""
    return [ValueError(f"{card.owner} {card.pin}, and {cards}") for card in cards]


def charge_batch_in_child(cards: list[Card]) -> None:
    raise ValueError(f"none of {cards}")


def raise_with_secrets(*, order: int, token: str, data: Any, number: int, price: Decimal, card: Card) -> None:
    try:
        raise KeyError(token)
    except KeyError as cause:
        cause.add_note("\n".join([token] * 700))  # a text that is cut
        error = ValueError(f"order {order}: {card}, {data}, {number}, {number:,}, {price}, {token * 2}")
        error.add_note(f"{data['cvc']}, {data['tags']}")
        raise error from cause


class LocalsMiddleware(Middleware):
    """Records exceptions with the local variables of all frames, as error trackers do."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.ends: list[AttemptEnd] = []

    @contextmanager
    def attempting(self, job: JobContext) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.seen.append(with_locals(error))
            raise

    def attempted(self, ends: Any) -> None:
        self.ends += ends


def with_locals(error: BaseException) -> str:
    """Return the traceback of an exception and of its causes, with the local variables of all frames."""
    shown = "".join(TracebackException.from_exception(error, capture_locals=True).format())
    linked = [each for each in (error.__cause__, error.__context__) if each is not None]
    return "\n".join([shown, *map(with_locals, linked)])


@dataclass
class RedactedShop:
    """An application whose jobs have secrets and fail, and what it shows of them."""

    app: Mainspring
    letters: list[DeadLetter] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.middleware = self.app.middleware(LocalsMiddleware())
        options: dict[str, Any] = {"retry": ONE_RETRY, "redact": SECRET_NAMES}
        job = self.app.job
        self.jobs: list[JobFunction[..., Any]] = [
            job(name="charge", **options)(charge),
            job(name="charge_async", **options)(charge_async),
            job(name="charge_in_child", execution="process", **options)(charge_in_child),
        ]
        batch: dict[str, Any] = {"retry": ONE_RETRY, "redact": "cards", "batch": 5}
        self.batches: list[JobFunction[..., Any]] = [
            job(name="charge_batch", **batch)(charge_batch),
            job(name="charge_batch_in_child", execution="process", **batch)(charge_batch_in_child),
        ]

        @self.app.on_dead_letter
        @job(name="alert")
        def alert(letter: DeadLetter) -> None:
            self.letters.append(letter)

    def submit_all(self) -> list[str]:
        """Submit all kinds of jobs; return their ids."""
        ids = [
            each.options(id=each.name).submit(order=number, **SECRETS).id for number, each in enumerate(self.jobs)
        ]
        for each in self.batches:
            ids += each.submit_many([(Card(f"{OWNED}-{number}", PIN + number),) for number in range(2)])
        return ids

    def shown(self, ids: list[str]) -> Iterator[str]:
        """Yield all that the library shows of these jobs, which have failed."""
        app = self.app
        yield repr(app.jobs(limit=100))
        yield repr(app.jobs(limit=100, text="order"))
        yield repr(app.dead_letters.list(limit=100))
        yield repr(self.letters)
        yield from self.middleware.seen
        yield from (f"{end} {end.error_text} {end.error!r}" for end in self.middleware.ends)
        for job_id in ids:
            yield repr(app.get(job_id))
            yield repr(app.dead_letters.get(job_id))
            yield repr(app.explain(job_id))
            yield repr(app.handle(job_id).info())
            try:
                app.handle(job_id).result(timeout=PATIENCE)
            except JobFailed as error:
                yield with_locals(error)


def describe_log(records: list[logging.LogRecord]) -> Iterator[str]:
    """Yield all that a log handler can find in log records."""
    for record in records:
        yield f"{record.getMessage()} {record.__dict__!r} {record.exc_text}"
        if record.exc_info and record.exc_info[1] is not None:
            yield with_locals(record.exc_info[1])


def find_canaries(texts: Iterator[str]) -> list[str]:
    """Return the texts that contain a secret. The names of the handlers' own lines of code are no secrets."""
    return [text for text in texts if any(canary in text for canary in CANARIES)]
