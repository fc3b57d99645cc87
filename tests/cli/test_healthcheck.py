"""`mainspring healthcheck` and the signs of life of `mainspring run`: real workers that hang, stop and die."""

import json
import os
import resource
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ
from threading import Thread
from typing import Any

import pytest

from mainspring.clock import SystemClock
from tests.cli.shop_program import ENVIRONMENT, CommandResult, ShopProgram
from tests.nats.servers import MakeServers, make_nats_server
from tests.support import PATIENCE, eventually

__all__ = ["make_nats_server"]

pytestmark = pytest.mark.long

MODULE = """
from pathlib import Path
from threading import Event
from mainspring import Mainspring

app = Mainspring("sqlite:///shop.db", durability="normal", grace=0)


@app.job
def hang() -> None:
    Event().wait(1_000)


@app.job
def finish_with(path: str) -> None:
    while not Path(path).exists():
        Event().wait(0.01)


@app.job(queue="orders")
def ping() -> None: ...


@app.cron("30 2 * * *")
def nightly_report() -> None: ...
"""


FULL_DISK = 6_000  # bytes: room for a health file and for one frame of SQLite's log; an outcome needs several


class Worker:
    """`mainspring run` with a log in JSON, and every line that it has said."""

    def __init__(self, shop: ShopProgram, *options: str, **environment: str) -> None:
        command = ("run", "slow:app", "--log-format", "json", *options)
        self._process = shop.start(*command, stderr=subprocess.STDOUT, **environment)
        self.pid = self._process.pid
        self.lines: list[dict[str, Any]] = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))
            if self.lines[-1].get("event") == "ready":
                break
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines += [json.loads(line) for line in self._process.stdout]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        code = self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        self._process.kill()
        self.end()
        self._process.close()


class WorkersOfShop:
    """A shop with slow handlers, its workers, and their folder."""

    def __init__(self, shop: ShopProgram, folder: Path) -> None:
        (shop.folder / "slow.py").write_text(MODULE)
        self.shop = shop
        self._folder = str(folder)
        self.environment = {"MAINSPRING_HEALTH_DIR": self._folder}
        self._workers: list[Worker] = []

    def start(self, *options: str, **environment: str) -> Worker:
        self._workers.append(Worker(self.shop, *options, **self.environment | environment))
        return self._workers[-1]

    def check(self, *options: str) -> CommandResult:
        return self.shop.run("healthcheck", *options, MAINSPRING_HEALTH_DIR=self._folder)

    def wait_for_code(self, code: int, *options: str) -> CommandResult:
        """Check until it ends like this: again when a worker has reported its health, or after half a second."""
        clock = SystemClock()
        deadline = clock.monotonic_ns() + round(PATIENCE * 1e9)
        before = self._reports()
        while (done := self.check(*options)).code != code:
            assert clock.monotonic_ns() < deadline, done
            before = self._await_report(before)
        return done

    def _await_report(self, before: dict[str, int]) -> dict[str, int]:
        eventually(lambda: self._reports() != before, patience=0.5)
        return self._reports()

    def _reports(self) -> dict[str, int]:
        """Return when each file with the health of a worker was written."""
        found: dict[str, int] = {}
        with os.scandir(self._folder) as files:
            for file in files:
                with suppress(FileNotFoundError):
                    found[file.name] = file.stat().st_mtime_ns
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


@pytest.fixture
def workers(shop: ShopProgram, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersOfShop]:
    workers = WorkersOfShop(shop, tmp_path_factory.mktemp("health"))
    yield workers
    workers.close()


def test_a_worker_whose_places_hang_is_unhealthy_and_one_that_is_stopped_does_not_live(
    workers: WorkersOfShop,
) -> None:
    assert workers.check().error_line.startswith("mainspring: no worker of this user runs here; start one with")
    worker = workers.start("--threads", "1", "--stall-after", "1s")
    store = f"SQLite file {workers.shop.folder / 'shop.db'}"
    assert workers.check().output == f"worker {worker.pid} on {store}: ready, has leased 0 jobs\n"
    assert workers.check("--url", "sqlite:///other.db").code == 1
    assert workers.check("--url", "sqlite:///shop.db", "--pid", str(worker.pid)).code == 0
    assert workers.check("--pid", "1").error_line.startswith(
        "mainspring: no worker with pid 1 of this user runs here"
    )

    for name in ("hang", "ping"):
        workers.shop.run("submit", name, "--id", name, "--app", "slow:app")
    complaint = workers.wait_for_code(1).error_line
    assert complaint.startswith(
        f"mainspring: worker {worker.pid} on {store}: no worker has claimed any of these for "
    )
    assert "1 due job of slow.ping in queue orders (the oldest, ping, for " in complaint
    assert "1 of 1 slots (threads) of this worker are occupied, the longest by job hang (slow.hang)" in complaint
    told = json.loads(workers.check("--json").output)
    assert (told["healthy"], told["workers"][0]["pid"], told["workers"][0]["state"]) == (
        False,
        worker.pid,
        "ready",
    )
    assert told["workers"][0]["stall"] in told["workers"][0]["problem"]
    assert (workers.check("--ready").code, workers.check("--live").code) == (0, 0)

    worker.signal(signal.SIGSTOP)
    assert "has reported no health for" in workers.wait_for_code(1, "--live", "--within", "1s").error_line
    worker.signal(signal.SIGCONT)
    workers.wait_for_code(0, "--live", "--within", "3s")

    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert workers.check("--live").error_line.startswith("mainspring: no worker of this user runs here")
    starting, ready = (line for line in worker.lines if line.get("event") in ("starting", "ready"))
    assert (starting["event"], starting["engine"], starting["pid"]) == ("starting", store, worker.pid)
    assert {"name": "slow.ping", "queue": "orders"} in starting["handlers"]
    assert [schedule["name"] for schedule in ready["schedules"]] == ["slow.nightly_report"]
    assert [line["event"] for line in worker.lines if "event" in line][-2:] == ["stopping", "stopped"]
    assert any(
        line["level"] == "error" and "no worker has claimed any" in line["message"] for line in worker.lines
    )


def test_a_worker_that_was_killed_is_missed_until_another_one_comes(
    workers: WorkersOfShop, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        killed = workers.start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="5000000")
        heard = systemd.recv(4096).decode()
        while "READY=1" not in heard:
            heard += systemd.recv(4096).decode()
        assert "WATCHDOG=1" in heard
    killed.signal(signal.SIGKILL)
    killed.end()
    assert "was killed or has crashed; start it again" in workers.check("--live").error_line
    another = workers.start()
    done = workers.wait_for_code(0)
    assert done.output.startswith(f"worker {another.pid} on ")


def test_a_worker_whose_server_is_gone_lives_and_is_not_ready(
    workers: WorkersOfShop, make_nats_server: MakeServers, tmp_path: Path
) -> None:
    server = make_nats_server()
    workers.start("--url", server.url, XDG_CACHE_HOME=str(tmp_path / "cache"))
    workers.wait_for_code(0, "--url", server.url)
    server.kill()
    complaint = workers.wait_for_code(1, "--ready", "--within", "3s").error_line
    assert "cannot use its store: NATS at" in complaint or "has had no answer from its store for" in complaint
    assert workers.check("--live").code == 0


def test_a_worker_that_cannot_store_outcomes_is_not_ready_until_the_disk_has_space(workers: WorkersOfShop) -> None:
    worker = workers.start()
    workers.shop.run("submit", "finish_with", "path=end", "--id", "long", "--app", "slow:app")
    assert eventually(lambda: "RUNNING" in workers.shop.run("jobs", "show", "long", "--app", "slow:app").output)
    limits = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
    # No file of the worker may grow beyond this: as on a full disk, SQLite cannot append to its log.
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (FULL_DISK, limits[1]))
    (workers.shop.folder / "end").touch()
    complaint = workers.wait_for_code(1, "--ready").error_line
    assert "cannot use its store: 1 outcome cannot be stored: SQLite file" in complaint
    assert "the disk is full, or SQLite could not write to it" in complaint
    assert workers.check("--live").code == 0
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, limits)
    workers.wait_for_code(0)
    assert "COMPLETED" in workers.shop.run("jobs", "show", "long", "--app", "slow:app").output
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert any(line["message"].startswith("the store works again, after ") for line in worker.lines)


@pytest.mark.parametrize("engine", ["sqlite", "nats"])
def test_a_worker_with_a_mistyped_queue_is_unhealthy_and_every_command_says_why(
    workers: WorkersOfShop, make_nats_server: MakeServers, engine: str
) -> None:
    where = ("--url", make_nats_server().url if engine == "nats" else workers.shop.url)
    cache = str(workers.shop.folder)
    worker = workers.start("--queues", "ordes", "--stall-after", "1s", *where, XDG_CACHE_HOME=cache)
    (warning,) = [line["message"] for line in worker.lines if "no handler uses" in line["message"]]
    assert warning.endswith("serves queue 'ordes', but no handler uses that queue; did you mean 'orders'?")

    def run(*arguments: str) -> CommandResult:
        return workers.shop.run(*arguments, "--app", "slow:app", *where, XDG_CACHE_HOME=cache)

    assert run("submit", "ping", "--id", "order-42").code == 0
    complaint = workers.wait_for_code(1).error_line
    assert "no worker serves queue 'orders': 1 due job of slow.ping in queue orders (the oldest," in complaint
    assert workers.check("--ready").code == 0
    advice = f"mainspring run slow:app --queues orders {' '.join(where)}"
    explained = run("explain", "order-42").output
    assert "and no worker serves queue 'orders'" in explained
    assert explained.endswith(f"\n  {advice}\n")
    examined = run("doctor")
    assert "no worker serves queue orders, and 1 job waits in it" in examined.output
    assert advice in examined.output
    assert examined.code == 1
    workers.start("--queues", "orders", *where, XDG_CACHE_HOME=cache)  # as the commands advise
    assert workers.wait_for_code(0).code == 0


def test_the_banner_is_in_colours_on_a_terminal_and_ends_with_a_signal(workers: WorkersOfShop) -> None:
    ours, theirs = os.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("HHHH", 40, 250, 0, 0))  # wide enough for the path of any test
    command = workers.shop.command("run", "--app", "slow:app")
    process = subprocess.Popen(
        command,
        cwd=workers.shop.folder,
        env=ENVIRONMENT | workers.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        shown = _read_until(ours, lambda text: "SIGTERM" in text)
        process.send_signal(signal.SIGTERM)
        shown += _read_until(ours, lambda text: "stopped" in text)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "\x1b[1;36mMainspring\x1b[0m" in shown
    assert f"SQLite file {workers.shop.folder / 'shop.db'}" in shown
    for part in ("slow.ping", "orders", "slow.nightly_report", "8 threads", "next 20", "stopping"):
        assert part in shown


def _read_until(terminal: int, is_enough: Callable[[str], bool]) -> str:
    shown = ""
    while not is_enough(shown):
        assert select.select([terminal], [], [], PATIENCE)[0], shown
        shown += os.read(terminal, 65_536).decode()
    return shown


def test_what_cannot_start_is_told_in_the_form_of_the_log(workers: WorkersOfShop) -> None:
    done = workers.shop.run("run", "slow:app", "--log-format", "json", "--url", "sqlite:///gone/shop.db")
    assert done.code == 3
    (line,) = done.errors.splitlines()
    assert json.loads(line)["level"] == "critical"
    assert "gone does not exist" in json.loads(line)["message"]


def test_a_duration_that_makes_no_sense_is_refused(workers: WorkersOfShop) -> None:
    assert "'soon' is no duration" in workers.check("--within", "soon").error_line
