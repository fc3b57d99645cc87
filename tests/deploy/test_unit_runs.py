"""The systemd unit without systemd: its command, where it runs, is a worker that says what systemd waits for."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, UNIT, read_unit
from tests.programs import Program, program
from tests.support import PATIENCE

pytestmark = pytest.mark.long


class Machine:
    """A machine with the application shop, where the unit expects everything."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.service = read_unit(self._expanded(UNIT.read_text()))["Service"]
        (root / "opt" / "shop").mkdir(parents=True)
        shutil.copy(DEPLOY / "app" / "shop.py", root / "opt" / "shop")
        for kind, place in (("StateDirectory", "lib"), ("CacheDirectory", "cache"), ("RuntimeDirectory", "run")):
            (name,) = self.service[kind]
            (root / place / name).mkdir(parents=True)

    def _expanded(self, text: str) -> str:
        places = {"%i": "shop", "%S": f"{self._root}/lib", "%C": f"{self._root}/cache", "%t": f"{self._root}/run"}
        for specifier, place in places.items():
            text = text.replace(specifier, place)
        assert "%" not in text
        return text.replace("/opt/", f"{self._root}/opt/")

    @property
    def folder(self) -> Path:
        return Path(self.service["WorkingDirectory"][0])

    def environment(self, **more: str) -> dict[str, str]:
        (settings,) = self.service["Environment"]
        own = dict(setting.split("=", 1) for setting in settings.split())
        return {"PATH": os.environ["PATH"], "MAINSPRING_APP": "shop:app", **own, **more}

    def start(self, address: str) -> AbstractContextManager[Program]:
        file, *arguments = shlex.split(self.service["ExecStart"][0])
        assert file == f"{self._root}/opt/shop/.venv/bin/mainspring"
        arguments = [word for word in arguments if not word.startswith("$")]
        watchdog = str(int(self.service["WatchdogSec"][0]) * 1_000_000)
        environment = self.environment(NOTIFY_SOCKET=address, WATCHDOG_USEC=watchdog)
        return program("-m", "mainspring", *arguments, folder=self.folder, environment=environment)


@pytest.fixture
def notices(tmp_path: Path) -> Iterator[socket.socket]:
    """Where systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(PATIENCE)
        yield listener


def hear(notices: socket.socket, line: str) -> None:
    """Wait until a line is said."""
    while line not in notices.recv(4_096).decode().splitlines():
        pass


def test_the_command_of_the_unit_is_a_worker_that_says_what_systemd_waits_for(
    tmp_path: Path, notices: socket.socket
) -> None:
    machine = Machine(tmp_path)
    with machine.start(notices.getsockname()) as worker:
        hear(notices, "READY=1")
        hear(notices, "WATCHDOG=1")
        with program("-m", "mainspring", "healthcheck", environment=machine.environment()) as check:
            assert check.wait(PATIENCE) == 0
        assert (machine.folder / "mainspring.db").exists()
        worker.send_signal(signal.SIGTERM)
        hear(notices, "STOPPING=1")
        assert worker.wait(PATIENCE) == 0
