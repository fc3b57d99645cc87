"""Coroutines all the way: submit from an event loop, run on one, with typed arguments and a typed result."""

import asyncio
from contextlib import chdir
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from tempfile import TemporaryDirectory

from mainspring import InvalidArguments, Mainspring

app = Mainspring("sqlite:///travel.db")


@dataclass(frozen=True)
class Trip:
    """A request to book seats."""

    city: str
    day: date
    nights: int = 1


@dataclass(frozen=True)
class Offer:
    """What it costs."""

    trip: Trip
    price: Decimal


@app.job(timeout=5)
async def find_offer(trip: Trip, discount: Decimal = Decimal(0)) -> Offer:
    await asyncio.sleep(0.2)  # a hundred of these run at once, on one thread
    return Offer(trip, Decimal("79.90") * trip.nights - discount)


async def main() -> None:
    first_day = datetime(2026, 5, 1, tzinfo=UTC).date()
    trips = [Trip("Taipei", first_day + timedelta(days=n), nights=2) for n in range(20)]
    async with app, app.running_async():  # a worker in this process, which runs its handlers on another loop
        handles = await asyncio.gather(*(find_offer.submit_async(trip) for trip in trips))
        offers = await asyncio.gather(*handles)  # `await handle` is the result of the job
        assert offers[0] == Offer(trips[0], Decimal("159.80"))  # a dataclass again, not a dict
        print(f"{len(offers)} offers, the first: {offers[0]}")
        print(f"completed: {(await app.counts_async())['COMPLETED']}")

        try:
            await find_offer.submit_async(Trip("Taipei", first_day, nights="two"))  # type: ignore[arg-type]
        except InvalidArguments as error:  # refused here, not in a worker at night
            print(f"refused: {error}")


with TemporaryDirectory() as folder, chdir(folder):
    asyncio.run(main())
