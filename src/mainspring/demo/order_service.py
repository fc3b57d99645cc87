"""The order service of the demo, which cancels and charges orders. Each call takes time, and it can be down."""

from pathlib import Path
from threading import Event

TAKES_SECONDS = 0.02


class ServiceDown(Exception):
    """The order service is down."""


class OrderService:
    """A simulated service; it is down while a file exists, which every process can see."""

    def __init__(self, switch: str) -> None:
        self._switch = Path(switch)
        self._never = Event()

    def go_down(self) -> None:
        """Refuse all calls from now on."""
        self._switch.touch()

    def come_back(self) -> None:
        """Accept calls again."""
        self._switch.unlink()

    def cancel(self, order: int) -> None:
        """Cancel an order; `ServiceDown` if the service is down."""
        self._work(f"order {order} cannot be canceled")

    def charge(self, order: int) -> None:
        """Charge an order; `ServiceDown` if the service is down."""
        self._work(f"order {order} cannot be charged")

    def _work(self, otherwise: str) -> None:
        self._never.wait(TAKES_SECONDS)
        if self._switch.exists():
            raise ServiceDown(f"{otherwise}: the order service is down")
