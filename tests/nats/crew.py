"""A crew: workers as processes, each with a way to the servers of its own, and faults that hit them.

Every fault is noted with what it hit and when, so that a judge can tell which second starts it explains.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP, SIGTERM

from tests.nats.apps.mixed import URL
from tests.nats.proxy import Proxy
from tests.nats.servers import Servers
from tests.processes.run_log import work_for
from tests.processes.sandbox import READY, Child, Sandbox
from tests.processes.worker_processes import WorkerProcesses

WORKERS = 3
APPS = "tests.nats.apps"
KILLED = "worker killed"
STOPPED = "worker stopped"


@dataclass(frozen=True)
class Fault:
    """Something that was done to a worker or a server."""

    kind: str
    processes: frozenset[int]
    """The workers that it hit."""
    begin: int
    """Nanoseconds on the monotonic clock, like its end."""
    end: int

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return (self.end - self.begin) / 1e9


class Crew(WorkerProcesses):
    """Workers of one application on NATS. Those at the first places reach the servers through proxies only."""

    def __init__(
        self,
        site: Sandbox,
        servers: Servers,
        *,
        options: str,
        module: str = "mixed",
        seed: int = 0,
        workers: int = WORKERS,
        proxied: int = 1,
    ) -> None:
        super().__init__(site, module, seed=seed, workers=workers)
        self._servers = servers
        self._options = options
        self.proxies: dict[int, list[Proxy]] = {place: servers.proxies() for place in range(proxied)}
        """Before the servers, by the place of the worker."""
        self._chance = Random(seed)
        self.faults: list[Fault] = []

    # -- workers

    def address(self, place: int) -> str:
        """Return the URL for the worker at a place."""
        proxies = self.proxies.get(place)
        servers = self._servers.url if proxies is None else ",".join(proxy.url for proxy in proxies)
        return f"{servers}?{self._options}"

    def start(self) -> None:
        self.workers = [self.start_at(place) for place in range(self._size)]
        for worker in self.workers:
            worker.expect_all(READY)

    def start_at(self, place: int) -> Child:
        """Start a worker for a place, without waiting for it."""
        reference = f"{APPS}.{self._module}:app"
        environment = {URL: self.address(place)}
        return self._sandbox.start("-m", "mainspring", "run", reference, on_line=self._count_line, **environment)

    def stop(self) -> None:
        """Stop all workers in order, together; none may fail at it."""
        for worker in self.workers:
            worker.expect_all(READY)
            worker.signal(SIGTERM)
        codes = [worker.wait() for worker in self.workers]
        assert codes == [0] * len(self.workers), "\n".join(
            line for worker in self.workers for line in worker.lines
        )

    @property
    def pids(self) -> frozenset[int]:
        """All processes that work now."""
        return frozenset(worker.pid for worker in self.workers)

    # -- faults

    def kill_a_worker(self) -> None:
        """`kill -9`, and another one in its place."""
        place = self._chance.randrange(self._size)
        self.workers[place].expect_all(READY)
        begin = now_ns()
        self.kill(self.workers[place])
        self._note(KILLED, {self.workers[place].pid}, begin)
        self.workers[place] = self.start_at(place)

    def stop_a_worker(self, seconds: float) -> None:
        """Let a worker stand still for a while, and go on as if nothing had been."""
        worker = self.workers[self._chance.randrange(self._size)]
        worker.expect_all(READY)
        begin = now_ns()
        worker.signal(SIGSTOP)
        work_for(seconds)
        worker.signal(SIGCONT)
        self._note(STOPPED, {worker.pid}, begin)

    def cut_a_worker(self, seconds: float) -> None:
        """Break the connection of a worker, and refuse another one for a while."""
        self._part(seconds, "worker cut off", Proxy.cut)

    def freeze_a_worker(self, seconds: float) -> None:
        """Let nothing through between a worker and the servers for a while, without a word."""
        self._part(seconds, "network frozen", Proxy.freeze)

    def drop_a_connection(self) -> None:
        """Break the connection of a worker, which may come back at once."""
        self._part(0, "connection dropped", Proxy.drop)

    def _part(self, seconds: float, kind: str, act: Callable[[Proxy], None]) -> None:
        place = self._chance.choice(list(self.proxies))
        worker = self.workers[place]
        worker.expect_all(READY)
        begin = now_ns()
        for proxy in self.proxies[place]:
            act(proxy)
        work_for(seconds)
        for proxy in self.proxies[place]:
            proxy.heal()
        self._note(kind, {worker.pid}, begin)

    def restart_the_server(self) -> None:
        """`kill -9` of the only server, and its restart."""
        begin = now_ns()
        self._servers.kill()
        self._servers.restart()
        self._note("server killed", self.pids, begin)

    def kill_the_leader(self, stream: str) -> None:
        """`kill -9` of the node that leads a stream; it comes back when another one leads."""
        leader = self._servers.leader_of(stream)
        begin = now_ns()
        self._servers.kill(leader)
        self._servers.leader_of(stream, other_than=leader)
        self._note("leader killed", self.pids, begin)
        self._servers.restart(leader)

    def _note(self, kind: str, processes: set[int] | frozenset[int], begin: int) -> None:
        self.faults.append(Fault(kind, frozenset(processes), begin, now_ns()))


def now_ns() -> int:
    """Return an instant on the clock of the ledger."""
    return time.monotonic_ns()  # noqa: TID251 - compared with the ledger


_copies = count(1)


def copy_in(folder: Path) -> str:
    """Return the setting that puts the local copy, from which lists are made, into a folder."""
    return f"projection={folder}/copy{next(_copies)}.db"
