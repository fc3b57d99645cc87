"""A client that submits, reads and cancels jobs over keep-alive connections, and records each answer.

Each job has a number of its own as its argument. So the test can find out from the store whether a job is there,
and how often, also if the answer of its submit was lost.
"""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from tests.processes.run_log import now_ns
from tests.support import PATIENCE, eventually
from tests.web.served_process import ServedProcess

MAX_BATCH = 20
PROBLEM = "urn:mainspring:problem:"
SUBMITTED = (200, 201)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A request without an answer."""

    server: ServedProcess
    sent_ns: int | None
    """When the request was sent completely; None if it was not."""
    lost_ns: int
    has_begun: bool
    """Whether a part of the answer has arrived."""
    error: str

    @property
    def is_excused(self) -> bool:
        """Whether no promise of the server was broken.

        A server that is killed promises nothing. A server that is stopped answers each request that was sent
        completely before the signal; a later one it answers, or it closes the connection without any answer.
        """
        server = self.server
        if server.killed_ns is not None and self.lost_ns >= server.killed_ns:
            return True
        if server.stopped_ns is None or self.lost_ns < server.stopped_ns:
            return False
        return not self.has_begun and (self.sent_ns is None or self.sent_ns >= server.stopped_ns)


@dataclass(slots=True, kw_only=True)
class Request:
    """A request, and the numbers of the jobs that it submits."""

    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    numbers: Sequence[int] = ()
    is_atomic: bool = False


class LoadClient(Thread):
    """A client on a thread of its own: see the module.

    - `servers`: the servers, which the test exchanges
    - `token`: the token that it sends
    - `place`: its number among the clients
    - `has_atomic`: whether the store can store all jobs of a batch or none
    """

    def __init__(self, servers: list[ServedProcess], token: str, place: int, *, has_atomic: bool) -> None:
        super().__init__(daemon=True, name=f"client {place}")
        self._servers = servers
        self._token = token
        self._chance = random.Random(place)
        self._next = place * 10_000_000
        self._has_atomic = has_atomic
        self._stopping = Event()
        self._server: ServedProcess | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._keyed: list[Request] = []  # requests with a key, which have no answer yet
        self.stored: dict[int, str] = {}
        """The ids of jobs whose submit was answered, by their numbers."""
        self.unsure: list[Request] = []
        """Submits without a key whose answers were lost."""
        self.canceled: set[str] = set()
        self.lost: list[Lost] = []
        self.refused = 0
        self.unexpected: list[Any] = []
        """Answers that no request should get, and errors of this thread."""

    def finish(self) -> None:
        """Send no more new requests, but repeat those with a key until they are answered."""
        self._stopping.set()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._act()
            assert eventually(self._repeat_all), f"no answer to {self._keyed}"
        except BaseException as error:  # a thread has no caller that could handle it
            self.unexpected.append(repr(error))
            raise
        finally:
            self._disconnect()

    # -- what it does

    def _act(self) -> None:
        if self._chance.random() < 0.02:
            self._disconnect()
        actions = [self._submit] * 4 + [self._submit_with_key] * 2
        actions += [self._read, self._list, self._cancel, self._send_nonsense]
        self._chance.choice(actions)()
        if self._keyed:
            self._repeat(self._chance.choice(self._keyed))

    def _new_submit(self) -> Request:
        size = self._chance.choice((1, 1, 1, self._chance.randint(2, MAX_BATCH)))
        numbers = range(self._next, self._next + size)
        self._next += size
        jobs = [{"type": "add", "arguments": {"n": n}, "delay": 3600} for n in numbers]
        if size == 1:
            return Request(method="POST", path="/jobs", body=json.dumps(jobs[0]).encode(), numbers=numbers)
        is_atomic = self._has_atomic and self._chance.random() < 0.5
        path = "/jobs/batch?atomic=true" if is_atomic else "/jobs/batch"
        if self._chance.random() < 0.5:
            body = json.dumps(jobs).encode()
            return Request(method="POST", path=path, body=body, numbers=numbers, is_atomic=is_atomic)
        lines = b"".join(json.dumps(job).encode() + b"\n" for job in jobs)
        kind = {"Content-Type": "application/x-ndjson"}
        return Request(method="POST", path=path, body=lines, headers=kind, numbers=numbers, is_atomic=is_atomic)

    def _submit(self) -> None:
        request = self._new_submit()
        answer = self._send(request)
        if answer is None:
            self.unsure.append(request)
        else:
            self._note_submit(request, *answer)

    def _submit_with_key(self) -> None:
        request = self._new_submit()
        request.headers["Idempotency-Key"] = f'"{request.numbers[0]}"'
        self._keyed.append(request)
        self._repeat(request)

    def _repeat(self, request: Request) -> None:
        """Send a request with a key, for the first time or again."""
        answer = self._send(request)
        if answer is None or answer[0] == 409:  # lost, or a killed server had begun with it
            return
        self._keyed.remove(request)
        self._note_submit(request, *answer)

    def _repeat_all(self) -> bool:
        for request in list(self._keyed):
            self._repeat(request)
        return not self._keyed

    def _note_submit(self, request: Request, status: int, content: Any) -> None:
        if status not in SUBMITTED:
            self.unexpected.append((request, status, content))
            return
        ids = [content["id"]] if "id" in content else content["ids"]
        self.stored.update(zip(request.numbers, ids, strict=True))

    def _read(self) -> None:
        """Read a job that was accepted, from any server."""
        if self.stored:
            number = self._chance.choice(list(self.stored)[-100:])
            request = Request(method="GET", path=f"/jobs/{self.stored[number]}")
            answer = self._expect(request, 200)
            if answer is not None and answer["arguments"] != {"n": number}:
                self.unexpected.append((request, number, answer))

    def _list(self) -> None:
        order = self._chance.choice(("true", "false"))
        request = Request(method="GET", path=f"/jobs?status=PENDING&newest_first={order}&limit=20")
        answer = self._expect(request, 200)
        if answer is not None and (len(answer["jobs"]) > 20 or (self.stored and not answer["jobs"])):
            self.unexpected.append((request, answer))

    def _cancel(self) -> None:
        if len(self.stored) > 10:
            job_id = self._chance.choice(list(self.stored.values())[:10])
            if self._expect(Request(method="POST", path=f"/jobs/{job_id}/cancel", body=b"{}"), 200) is not None:
                self.canceled.add(job_id)

    def _send_nonsense(self) -> None:
        status, request = self._chance.choice(
            (
                (400, Request(method="POST", path="/jobs", body=b'{"type": ')),
                (401, Request(method="GET", path="/jobs", headers={"Authorization": "Bearer msp_x"})),
                (404, Request(method="GET", path="/jobs/no-such-job")),
                (415, Request(method="POST", path="/jobs", body=b"{}", headers={"Content-Type": "text/plain"})),
                (422, Request(method="POST", path="/jobs", body=b'{"type": "no-such-type"}')),
                (422, Request(method="POST", path="/jobs/batch", body=b'[{"type": "add"}, {"type": 7}]')),
            )
        )
        self._expect(request, status)

    def _expect(self, request: Request, status: int) -> Any:
        """Send a request; return its answer, or None if the answer is lost or another one."""
        answer = self._send(request)
        if answer is not None and answer[0] != status:
            self.unexpected.append((request, answer))
        return None if answer is None or answer[0] != status else answer[1]

    # -- how it sends

    def _send(self, request: Request) -> tuple[int, Any] | None:
        """Send a request to the server of the connection, or to any; return the answer, or None if it is lost."""
        server, connection = self._connect()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"} | request.headers
        sent_ns: int | None = None
        try:
            connection.request(request.method, f"/api/v1{request.path}", body=request.body, headers=headers)
            sent_ns = now_ns()
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            has_begun = not isinstance(error, OSError)  # RemoteDisconnected, which is both, comes before a byte
            self.lost.append(
                Lost(server=server, sent_ns=sent_ns, lost_ns=now_ns(), has_begun=has_begun, error=repr(error))
            )
            self._disconnect()
            return None
        if answer.will_close:
            self._disconnect()
        self._check(request, answer, content)
        server.answers.append(answer.status)
        return answer.status, json.loads(content)

    def _check(self, request: Request, answer: http.client.HTTPResponse, content: bytes) -> None:
        """Check that an answer is JSON, and that one which refuses the request says why."""
        kind = answer.headers["content-type"]
        if answer.status in SUBMITTED:
            is_right = kind == "application/json"
        else:
            self.refused += 1
            problem = json.loads(content)
            is_right = kind == "application/problem+json" and problem["status"] == answer.status
            is_right = is_right and problem["type"].startswith(PROBLEM) and len(problem["detail"]) > 10
        if not is_right:
            self.unexpected.append((request, answer.status, kind, content))

    def _connect(self) -> tuple[ServedProcess, http.client.HTTPConnection]:
        if self._server is None or self._connection is None:
            running = [server for server in self._servers if server.is_running]
            self._server = self._chance.choice(running or self._servers)
            self._connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=PATIENCE)
        return self._server, self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
