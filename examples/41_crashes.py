"""Would it survive? A process that dies at every step on its store, and the next one that goes on."""

from mainspring import JobFunction, Mainspring, current_job
from mainspring.testing import every_crash

# --- the application, as it is in production

app = Mainspring("sqlite:///shop.db")


class Bank:
    """Another system, which knows what it was told, whatever becomes of us."""

    def __init__(self) -> None:
        self.charges: list[int] = []
        self._seen: set[str] = set()

    def charge(self, order: int, key: str | None = None) -> None:
        if key is None or key not in self._seen:
            self.charges.append(order)
        if key is not None:
            self._seen.add(key)

    def reset(self) -> None:
        self.charges.clear()
        self._seen.clear()


bank = Bank()


@app.job
def charge_carelessly(order: int) -> None:
    bank.charge(order)


@app.job
def charge(order: int) -> None:
    bank.charge(order, key=current_job().id)  # the same in every attempt


# --- its test


def survive(job: JobFunction[[int], None]) -> int:
    crashes = 0
    for crash in every_crash(app, lambda: job.after(60).submit(42), prepare=bank.reset):
        with crash.recovered():  # a new process starts and runs everything to the end
            assert len(bank.charges) <= 1, "charged twice"
            assert bank.charges or not crash.acknowledged, "never charged"
        crashes += crash.step is not None
    return crashes


def test_every_order_is_charged_once_whatever_happens() -> None:
    print(f"charged once after each of {survive(charge)} crashes")


def show_a_failure() -> None:
    try:
        survive(charge_carelessly)
    except AssertionError as failure:
        print(f"{failure}, {failure.__notes__[0]}")
    else:
        raise RuntimeError("the check has not noticed it")


if __name__ == "__main__":  # pytest finds the test by name
    test_every_order_is_charged_once_whatever_happens()
    show_a_failure()
