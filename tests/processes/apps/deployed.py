"""Releases of one application: `deployed.py old` or `deployed.py new` says which handlers it has."""

import logging
import sys

from mainspring import Mainspring
from tests.processes.run_log import say

app = Mainspring("sqlite:///jobs.db")


def bill(order: int) -> None:
    """Do the work of both releases."""
    say(f"billed {order}")


def ship(order: int) -> None:
    """Do what only the new release can."""
    say(f"shipped {order}")


def register(release: str) -> None:
    """Register the handlers of a release."""
    if release == "old":
        app.job(name="shop.bill")(bill)
    elif release == "new":
        app.job(name="shop.ship")(ship)
        app.job(name="shop.send_invoice", aliases=("shop.bill",))(bill)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    register(sys.argv[1])
    app.run()
