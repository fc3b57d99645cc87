"""Servers under load that are killed, stopped and restarted. Each engine subclasses the suite.

Invariants
- A job whose submit was answered with 200 or 201 is in the store exactly once. A job whose answer was lost is
  there at most once, and exactly once if the client has repeated the request with its key until it was answered.
- An answer that refuses a request is a problem that says why.
- A request that was sent completely before SIGTERM is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mainspring import JobInfo, JobStatus, Mainspring
from tests.processes.run_log import now_ns
from tests.support import amount, eventually
from tests.web.killed_server import make_app
from tests.web.load_client import LoadClient
from tests.web.served_process import ServedProcess, served

ANSWERS = 40
"""How many answers a server must have given before it is killed or stopped."""


class LoadSuite:
    """Accepted jobs are not lost, whatever happens to the servers."""

    has_atomic = True
    """Whether the store can store all jobs of a batch or none."""

    @pytest.fixture
    def url(self) -> str:
        """Override this: the URL of an empty store."""
        raise NotImplementedError

    @pytest.fixture
    def app(self, url: str) -> Iterator[Mainspring]:
        with make_app(url) as app:
            yield app

    def test_no_accepted_job_is_lost_while_servers_are_killed_and_stopped(
        self, app: Mainspring, url: str, tmp_path: Path
    ) -> None:
        token = app.tokens.create("shop", scopes=["submit", "read", "operate"]).secret
        with ExitStack() as stack:

            def start() -> ServedProcess:
                server = stack.enter_context(served(url, tmp_path / f"server-{len(all_servers)}.log"))
                all_servers.append(server)
                return server

            all_servers: list[ServedProcess] = []
            servers = [start(), start()]
            clients = [
                LoadClient(servers, token, place, has_atomic=self.has_atomic)
                for place in range(amount(4, thorough=8))
            ]
            for client in clients:
                client.start()
            rounds, end = 0, now_ns() + amount(0, thorough=60) * 1_000_000_000
            while rounds < 2 or now_ns() < end:
                server = servers[rounds % 2]
                assert eventually(lambda: len(server.answers) >= ANSWERS or not alive(clients))  # noqa: B023
                if (
                    rounds // 2 % 2 == rounds % 2
                ):  # each place is killed in one pair of rounds, and stopped in the next
                    server.kill()
                else:
                    server.stop()
                servers[rounds % 2] = start()
                rounds += 1
            for client in clients:
                client.finish()
            assert eventually(lambda: not alive(clients))
            for server in servers:
                server.stop()
            logs = [server.log.read_text() for server in all_servers]
        unexpected = [each for client in clients for each in client.unexpected]
        assert unexpected == [], (unexpected, logs)
        lost = [each for client in clients for each in client.lost if not each.is_excused]
        assert lost == [], lost
        assert all(client.refused for client in clients)
        check_store(read_jobs(app), clients)


def alive(clients: list[LoadClient]) -> bool:
    """Return whether a client still runs."""
    return any(client.is_alive() for client in clients)


def read_jobs(app: Mainspring) -> list[JobInfo]:
    """Return all jobs of the store."""
    page = app.jobs(limit=500)
    found = list(page)
    while page.next is not None:
        page = app.jobs(limit=500, after=page.next)
        found += page
    return found


def check_store(jobs: list[JobInfo], clients: list[LoadClient]) -> None:
    """Compare the jobs of the store with the answers that the clients have got."""
    answered = {number: job_id for client in clients for number, job_id in client.stored.items()}
    unsure = [request for client in clients for request in client.unsure]
    counts = Counter(job.arguments["n"] for job in jobs)
    ids = {job.arguments["n"]: job.id for job in jobs}
    assert counts.total() == len(counts) == len(set(ids.values()))  # no job is there twice
    assert {number: ids.get(number) for number in answered} == answered
    assert ids.keys() - answered.keys() <= {number for request in unsure for number in request.numbers}
    for request in unsure:
        if request.is_atomic:
            assert sum(counts[number] for number in request.numbers) in (0, len(request.numbers))
    canceled = {job_id for client in clients for job_id in client.canceled}
    assert canceled
    assert {job.status for job in jobs if job.id in canceled} == {JobStatus.CANCELED}
