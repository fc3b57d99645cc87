"""A real Prometheus on a free port of this machine, which ends with its block."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from mainspring.cli.nats_process import HOST, HeldPorts
from scripts.fetch_prometheus import PrometheusTools
from tests.support import PATIENCE, eventually


def is_ok(url: str) -> bool:
    """Return whether a server answers with 200."""
    try:
        with urlopen(url, timeout=PATIENCE) as answer:
            return bool(answer.status == 200)
    except HTTPError as error:
        error.close()
        return False
    except (URLError, ConnectionError):
        return False


class PrometheusServer:
    """Queries a Prometheus by its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://{HOST}:{port}"

    @property
    def is_ready(self) -> bool:
        """Whether it answers queries."""
        return is_ok(f"{self._url}/-/ready")

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer; an error of Prometheus is raised, with its text as a note."""
        try:
            with urlopen(f"{self._url}/api/v1/{path}?{urlencode(parameters)}", timeout=PATIENCE) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            with error:
                error.add_note(f"{parameters}: {error.read().decode()}")
            raise

    def values(self, expression: str) -> list[float]:
        """Return the values of a query now, without those that are no numbers."""
        result = self.get("query", query=expression)["result"]
        numbers = [float(series["value"][1]) for series in result]
        return [number for number in numbers if math.isfinite(number)]


@contextmanager
def running_prometheus(tools: PrometheusTools, configuration: Path, folder: Path) -> Iterator[PrometheusServer]:
    """Run Prometheus with a configuration; `folder` gets its data and its log."""
    with HeldPorts() as ports, (folder / "prometheus.log").open("wb") as log:
        port = ports.choose()
        command = [
            str(tools.prometheus),
            f"--config.file={configuration}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={HOST}:{port}",
        ]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            server = PrometheusServer(port)
            assert eventually(lambda: server.is_ready or process.poll() is not None)
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            yield server
        finally:
            process.terminate()
            process.wait(PATIENCE)
