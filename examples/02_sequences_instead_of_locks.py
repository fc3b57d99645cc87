"""An account that many threads use at once and that has no lock: it lives on a sequence."""

from mainspring import SequenceBound, ThreadPool


class Account:
    """Touched by the tasks of one sequence only."""

    def __init__(self, balance: int) -> None:
        self.balance = balance

    def deposit(self, amount: int) -> int:
        self.balance += amount  # not atomic, and it need not be
        return self.balance


with ThreadPool(4) as pool:
    account = SequenceBound(pool.sequenced("account"), Account, 100)
    for _ in range(10):  # ten producers at once
        pool.post(lambda: [account.deposit(1) for _ in range(1_000)])
    pool.wait_idle(timeout=30)
    balance = account.deposit(0).result()

assert balance == 10_100
print(f"10,000 deposits from 10 tasks, none lost: {balance}")
