"""Worker processes, each with its own proxies before the servers, and faults that hit the workers or the servers.

Every fault is recorded with the processes that it hit and its time, so that `chaos_report` can explain second
starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from signal import SIGCONT, SIGSTOP

from tests.nats.apps.mixed import URL
from tests.nats.proxy import Proxy
from tests.nats.servers import Servers
from tests.processes.run_log import now_ns, work_for
from tests.processes.sandbox import READY, Child, Sandbox
from tests.processes.worker_processes import WorkerProcesses

WORKERS = 3
KILLED = "worker killed"
STOPPED = "worker stopped"


@dataclass(frozen=True)
class Fault:
    """A fault of workers or servers."""

    kind: str
    processes: frozenset[int]
    """The processes of the workers that it hit."""
    begin: int
    """Nanoseconds on the monotonic clock, like its end."""
    end: int

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return (self.end - self.begin) / 1e9


class ChaosWorkers(WorkerProcesses):
    """Workers of one application on NATS. The first ones reach the servers only through proxies."""

    apps = "tests.nats.apps"

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
        self.faults: list[Fault] = []

    # -- workers

    def address(self, place: int) -> str:
        """Return the URL for the worker at a place."""
        proxies = self.proxies.get(place)
        servers = self._servers.url if proxies is None else ",".join(proxy.url for proxy in proxies)
        return f"{servers}?{self._options}"

    def start_at(self, place: int) -> Child:
        return self.start_one(**{URL: self.address(place)})

    @property
    def pids(self) -> frozenset[int]:
        """The processes of all workers."""
        return frozenset(worker.pid for worker in self.workers)

    # -- faults

    def kill_a_worker(self) -> None:
        """Kill a worker with `kill -9`, and start another one in its place."""
        place = self._random.randrange(self._size)
        self.workers[place].expect_all(READY)
        begin = now_ns()
        self.kill(self.workers[place])
        self._record(KILLED, {self.workers[place].pid}, begin)
        self.workers[place] = self.start_at(place)

    def stop_a_worker(self, seconds: float) -> None:
        """Suspend a worker for a while with SIGSTOP."""
        worker = self.workers[self._random.randrange(self._size)]
        worker.expect_all(READY)
        begin = now_ns()
        worker.signal(SIGSTOP)
        work_for(seconds)
        worker.signal(SIGCONT)
        self._record(STOPPED, {worker.pid}, begin)

    def cut_a_worker(self, seconds: float) -> None:
        """Break the connection of a worker, and refuse new ones for a while."""
        self._part(seconds, "worker cut off", Proxy.cut)

    def freeze_a_worker(self, seconds: float) -> None:
        """Pass no data between a worker and the servers for a while; the connection stays open."""
        self._part(seconds, "network frozen", Proxy.freeze)

    def drop_a_connection(self) -> None:
        """Break the connection of a worker, which may reconnect at once."""
        self._part(0, "connection dropped", Proxy.drop)

    def _part(self, seconds: float, kind: str, act: Callable[[Proxy], None]) -> None:
        place = self._random.choice(list(self.proxies))
        worker = self.workers[place]
        worker.expect_all(READY)
        begin = now_ns()
        for proxy in self.proxies[place]:
            act(proxy)
        work_for(seconds)
        for proxy in self.proxies[place]:
            proxy.heal()
        self._record(kind, {worker.pid}, begin)

    def restart_the_server(self) -> None:
        """Kill the only server with `kill -9`, and restart it."""
        begin = now_ns()
        self._servers.kill()
        self._servers.restart()
        self._record("server killed", self.pids, begin)

    def kill_the_leader(self, stream: str) -> None:
        """Kill the node that leads a stream with `kill -9`; restart it when another one leads."""
        leader = self._servers.leader_of(stream)
        begin = now_ns()
        self._servers.kill(leader)
        self._servers.leader_of(stream, other_than=leader)
        self._record("leader killed", self.pids, begin)
        self._servers.restart(leader)

    def _record(self, kind: str, processes: set[int] | frozenset[int], begin: int) -> None:
        self.faults.append(Fault(kind, frozenset(processes), begin, now_ns()))


_numbers = count(1)


def projection_in(folder: Path) -> str:
    """Return the setting that puts the projection into a folder, each time with another file name."""
    return f"projection={folder}/projection{next(_numbers)}.db"
