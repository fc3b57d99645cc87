"""The order service: what cancels or charges an order for real. It takes its time, and it can be down."""

from pathlib import Path
from threading import Event

TAKES_SECONDS = 0.02


class ServiceDown(Exception):
    """The order service did not answer."""


class OrderService:
    """Down while a file says so, which every process can see."""

    def __init__(self, switch: str) -> None:
        self._switch = Path(switch)
        self._never = Event()

    def go_down(self) -> None:
        """Refuse everything from now on."""
        self._switch.touch()

    def come_back(self) -> None:
        """Work again."""
        self._switch.unlink()

    def cancel(self, order: int) -> None:
        """Cancel an order; `ServiceDown` if that cannot be done now."""
        self._work(f"order {order} cannot be cancelled")

    def charge(self, order: int) -> None:
        """Charge an order; `ServiceDown` if that cannot be done now."""
        self._work(f"order {order} cannot be charged")

    def _work(self, otherwise: str) -> None:
        self._never.wait(TAKES_SECONDS)
        if self._switch.exists():
            raise ServiceDown(f"{otherwise}: the order service is down")
