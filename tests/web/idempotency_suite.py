"""Tests of `Idempotency-Key` with real servers that are killed. Each engine subclasses the suite."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from threading import Thread
from typing import Any

import pytest

from mainspring import JobStatus, Mainspring
from tests.support import amount, eventually
from tests.web.killed_server import STEPS, KilledServer, make_app, started

CLIENTS = 8


class IdempotencySuite:
    """A client that repeats a request after a lost answer gets the same ids, and makes no second job."""

    @pytest.fixture
    def url(self) -> str:
        """Override this: the URL of an empty store."""
        raise NotImplementedError

    @pytest.fixture
    def app(self, url: str) -> Iterator[Mainspring]:
        with make_app(url) as app:
            yield app

    @pytest.fixture
    def token(self, app: Mainspring) -> str:
        return app.tokens.create("shop", scopes=["submit", "operate"]).secret

    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("size", [1, 200])
    def test_a_request_is_repeated_after_the_server_was_killed(
        self, app: Mainspring, url: str, token: str, *, step: str, size: int
    ) -> None:
        jobs = [{"type": "add", "arguments": {"n": n}} for n in range(size)]
        path, body = ("/jobs", jobs[0]) if size == 1 else ("/jobs/batch", jobs)
        with started(url, step) as killed:
            assert killed.post(path, token, "k1", body) is None
            assert killed.process.wait() != 0
        answers: list[tuple[int, Any] | None] = []

        def is_answered(server: KilledServer) -> bool:
            answers.append(server.post(path, token, "k1", body))
            last = answers[-1]
            assert last is not None
            assert last[0] in (201, 409)
            return last[0] == 201

        with started(url) as server:
            assert eventually(lambda: is_answered(server))
            assert server.post(path, token, "k1", body) == answers[-1]
        status, content = answers[-1] or (0, {})
        ids = [content["id"]] if size == 1 else content["ids"]
        assert status == 201
        assert len(set(ids)) == size
        assert sorted(job.id for job in app.jobs(limit=500)) == sorted(ids)

    def test_an_action_is_repeated_after_the_server_was_killed(
        self, app: Mainspring, url: str, token: str
    ) -> None:
        with started(url) as server:
            answer = server.post("/jobs", token, "k0", {"type": "add", "id": "order-1", "delay": 3600})
            assert answer is not None
            assert answer[0] == 201
        path = "/jobs/order-1/cancel"
        with started(url, "after the end") as killed:
            assert killed.post(path, token, "k1", {}) is None
        with started(url) as server:
            answer = server.post(path, token, "k1", {})
            assert answer is not None
            assert (answer[0], answer[1]["is_done"]) == (200, True)  # the answer of the first request
        assert app.get("order-1").status is JobStatus.CANCELED

    def test_many_clients_repeat_the_same_keys_while_servers_are_killed(
        self, app: Mainspring, url: str, token: str
    ) -> None:
        keys = amount(12, thorough=100)
        with ExitStack() as stack:
            servers = [stack.enter_context(started(url)) for _ in range(2)]
            for number in range(keys):  # two thirds of the keys are used before; the others by all clients at once
                if number % 3:
                    answer = servers[number % 2].post(*request_of(number, token))
                    assert answer is not None
                    assert answer[0] == 201
            clients = [RepeatingClient(servers, token, keys, seed) for seed in range(CLIENTS)]
            for client in clients:
                client.start()
            for place in range(2):
                count = sum(len(client.found) for client in clients)
                assert eventually(lambda: sum(len(each.found) for each in clients) > count or not alive(clients))  # noqa: B023
                servers[place].kill()
                servers[place] = stack.enter_context(started(url))
            assert eventually(lambda: not alive(clients))
        assert [client.unexpected for client in clients] == [[]] * CLIENTS
        assert all(client.found == clients[0].found for client in clients)
        named = [job_id for answer in clients[0].found.values() for job_id in ids_of(answer)]
        assert len(clients[0].found) == keys
        assert sorted(named) == sorted(job.id for job in app.jobs(limit=1_000))


def request_of(number: int, token: str) -> tuple[str, str, str, Any]:
    """Return the path, the token, the key and the body of a request: one to four jobs."""
    jobs = [{"type": "add", "arguments": {"n": n}} for n in range(number % 4 + 1)]
    path, body = ("/jobs", jobs[0]) if number % 4 == 0 else ("/jobs/batch", jobs)
    return path, token, f"key {number}", body


def ids_of(answer: Any) -> list[str]:
    """Return the ids of the jobs in an answer."""
    return [answer["id"]] if "id" in answer else list(answer["ids"])


class RepeatingClient(Thread):
    """A client that sends each request until it is answered, to any server, and sometimes with a wrong body."""

    def __init__(self, servers: list[KilledServer], token: str, keys: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._servers = servers
        self._token = token
        self._chance = random.Random(seed)
        self._left = list(range(keys))
        self.found: dict[int, Any] = {}
        """The answers by the number of the key."""
        self.unexpected: list[Any] = []

    def run(self) -> None:
        self._chance.shuffle(self._left)
        while self._left:
            if self._left[-1] % 3 and self._chance.random() < 0.1:
                self._send_another_body(self._left[-1])
            else:
                self._send(self._left[-1])

    def _send(self, number: int) -> None:
        answer = self._chance.choice(self._servers).post(*request_of(number, self._token))
        if answer is None or answer[0] == 409:  # the server was killed, or another client was faster
            return
        self._left.pop()
        if answer[0] == 201:
            self.found[number] = answer[1]
        else:
            self.unexpected.append(answer)

    def _send_another_body(self, number: int) -> None:
        server = self._chance.choice(self._servers)
        answer = server.post("/jobs", self._token, f"key {number}", {"type": "add", "delay": 1})
        if answer is not None and answer[0] != 422:
            self.unexpected.append(answer)


def alive(threads: Sequence[Thread]) -> bool:
    """Return whether a thread still runs."""
    return any(thread.is_alive() for thread in threads)
