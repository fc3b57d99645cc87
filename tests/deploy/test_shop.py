"""The shop of `deploy/compose.yaml` without containers: its commands, URLs and rights, on three servers."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from mainspring import JobStatus, Mainspring
from tests.deploy.files import DEPLOY, read_compose, read_dockerfile
from tests.deploy.shipped_cluster import ShippedCluster
from tests.programs import Program, program, read_line
from tests.support import PATIENCE

pytestmark = pytest.mark.long

PROGRAM = {"mainspring": ["-m", "mainspring"], "python": []}


class Composed:
    """Programs as the compose file starts them."""

    def __init__(self, cluster: ShippedCluster, folder: Path) -> None:
        self._services: dict[str, Any] = read_compose()["services"]
        self._cluster = cluster
        self._folder = folder

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a service; its temporary folder is ours."""
        own = {"XDG_CACHE_HOME": str(self._folder), "MAINSPRING_HEALTH_DIR": str(self._folder)}
        return {**os.environ, **own, **self._cluster.environment(name)}

    def is_healthy(self, name: str) -> bool:
        """Check a service with the command of the image."""
        (check,) = [value for instruction, value in read_dockerfile() if instruction == "HEALTHCHECK"]
        _, *arguments = json.loads(check.partition("CMD ")[2])
        with program("-m", "mainspring", *arguments, environment=self.environment(name)) as check_up:
            return check_up.wait(PATIENCE) == 0

    def start(self, name: str) -> AbstractContextManager[Program]:
        service = self._services[name]
        (entry,) = service.get("entrypoint", ["mainspring"])
        command = (*PROGRAM[entry], *service["command"])
        return program(*command, folder=DEPLOY / "app", environment=self.environment(name))


def test_the_shop_sells_with_the_rights_that_it_has(shipped: ShippedCluster, tmp_path: Path) -> None:
    composed = Composed(shipped, tmp_path)
    operator_url = composed.environment("prepare")["MAINSPRING_URL"]
    with composed.start("prepare") as prepare:
        assert prepare.wait(PATIENCE) == 0
    with ExitStack() as stack:
        worker = stack.enter_context(composed.start("worker"))
        shop = stack.enter_context(composed.start("shop"))
        assert read_line(shop).startswith("order 1: ")
        with Mainspring(f"{operator_url}&projection={tmp_path}/jobs.db") as operator:
            (packed,) = operator.jobs(type="shop.pack", limit=1)
            assert operator.handle(packed.id).wait(PATIENCE) is JobStatus.COMPLETED
        assert composed.is_healthy("worker")
        shop.terminate()
        worker.terminate()
        assert shop.wait(PATIENCE) == 0
        assert worker.wait(PATIENCE) == 0
        assert not composed.is_healthy("worker")
    assert "Violation" not in shipped.logs()
