"""The board of Grafana: its queries name metrics that there are, and return data from a real worker."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from mainspring import Mainspring
from mainspring.cli.nats_process import HeldPorts
from mainspring.monitoring import PrometheusCollector
from mainspring.monitoring.metrics import METRICS
from scripts.fetch_prometheus import PrometheusTools
from tests.deploy.files import DEPLOY
from tests.deploy.prometheus_server import PrometheusServer, is_ok, running_prometheus
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "mainspring.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
SUFFIXES = re.compile(r"_(bucket|count|sum)$")


def queries() -> list[tuple[str, str]]:
    """Return the title of the panel and the query, for all queries of the board."""
    return [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]


def fill_in(query: str) -> str:
    """Replace the variables of Grafana as the board does when all queues are chosen."""
    filled = query.replace("$__rate_interval", "30s").replace("$job", ".*").replace("$queue", ".*")
    assert "$" not in filled, f"{query} has an unknown variable"
    return filled


# -- the file


def test_every_panel_uses_the_chosen_data_source_and_has_a_place_of_its_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in PANELS:
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources), panel["title"]
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_the_board_has_a_variable_for_the_data_source_the_store_and_the_queue() -> None:
    assert VARIABLES["datasource"]["query"] == "prometheus"
    assert set(VARIABLES) == {"datasource", "job", "queue"}


def test_every_metric_of_the_board_is_exported_with_these_labels() -> None:
    for title, query in queries():
        for name, selector in re.findall(r"(mainspring_\w+)\{([^}]*)\}", query):
            metric = METRICS[SUFFIXES.sub("", name)]
            used = set(re.findall(r"(\w+)=", selector))
            assert used <= {*metric.labels, "job", "le"}, f"{title}: {name} has no labels {used}"
            assert not {"queue"} & set(metric.labels) or "queue" in used, f"{title}: {name} ignores the queue"


def test_every_metric_is_on_the_board() -> None:
    shown = {SUFFIXES.sub("", name) for _, query in queries() for name in re.findall(r"mainspring_\w+", query)}
    assert METRICS.keys() - shown == {"mainspring_store_up"}  # an alert has it


# -- against a real Prometheus, which scrapes a real worker


@pytest.fixture(scope="module")
def prometheus(
    prometheus_tools: PrometheusTools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusServer]:
    folder = tmp_path_factory.mktemp("board")
    with HeldPorts() as ports:
        port = ports.choose()
        url = f"sqlite:///{folder}/shop.db"
        with Mainspring(url) as app:
            token = app.tokens.create("prometheus", scopes=["read"]).secret
        configuration = write_configuration(folder, port, token)
        with (
            running_worker(url, port, folder / "worker.log"),
            running_prometheus(prometheus_tools, configuration, folder) as server,
        ):
            yield server


@contextmanager
def running_worker(url: str, port: int, log: Path) -> Iterator[None]:
    """Run a worker with its HTTP server, which logs into a file; assert that it ends in order."""
    options = ("--http", f"127.0.0.1:{port}", "--store-metrics")
    ready = f"http://127.0.0.1:{port}/readyz"
    command = (sys.executable, "-m", "mainspring", "run", "tests.deploy.metrics_worker:app", *options)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | {"MAINSPRING_URL": url}, stdout=output, stderr=subprocess.STDOUT
        )
        with process:
            try:
                assert eventually(lambda: is_ok(ready) or process.poll() is not None), log.read_text()
                yield
                assert process.poll() is None, log.read_text()
                process.terminate()
                assert process.wait(PATIENCE) == 0, log.read_text()
            finally:
                process.kill()


def write_configuration(folder: Path, port: int, token: str) -> Path:
    """Write the example of deploy/ with the worker as its target, and with short intervals."""
    example = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    text, count = re.subn(r"(?s)- targets:.*", f"- targets: ['127.0.0.1:{port}']\n", example)
    assert count == 1
    text = text.replace("interval: 15s", "interval: 1s")
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", folder)
    (folder / "mainspring.token").write_text(token)
    (folder / "prometheus.yml").write_text(text)
    return folder / "prometheus.yml"


def test_every_query_of_the_board_returns_data(prometheus: PrometheusServer) -> None:
    missing = dict.fromkeys(queries())

    def has_all() -> bool:
        for title, query in list(missing):
            if prometheus.values(fill_in(query)):
                del missing[title, query]
        return not missing

    assert eventually(has_all), "\n".join(f"{title}: no data for {query}" for title, query in missing)


def test_promtool_accepts_the_exported_text(prometheus_tools: PrometheusTools, tmp_path: Path) -> None:
    with Mainspring(f"sqlite:///{tmp_path}/shop.db") as app:
        app.job(name="work", queue="mail")(lambda: None).submit()
        registry = CollectorRegistry()
        registry.register(PrometheusCollector(app, store=True))
        text = generate_latest(registry)
    done = subprocess.run(
        [prometheus_tools.promtool, "check", "metrics"],
        input=text,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_the_variables_offer_the_store_and_its_queues(prometheus: PrometheusServer) -> None:
    def offered(name: str) -> list[str]:
        query = re.fullmatch(r"label_values\((.*), (\w+)\)", VARIABLES[name]["query"]["query"])
        assert query is not None
        return list(prometheus.get(f"label/{query[2]}/values", **{"match[]": fill_in(query[1])}))

    assert eventually(lambda: offered("job") == ["shop"] and offered("queue") == ["default", "mail", "paused"])


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ('mainspring_jobs{queue="paused", state="blocked"}', 1.0),
        ('mainspring_jobs{queue="paused", state="due"}', 0.0),
        ('sum(mainspring_workers{kind="alive"})', 1.0),
        ('mainspring_slots{kind="threads"}', 4.0),
        ("min(mainspring_worker_healthy)", 1.0),
        ("mainspring_store_up", 1.0),
    ],
)
def test_prometheus_gets_what_the_store_holds_and_what_the_worker_has(
    prometheus: PrometheusServer, query: str, value: float
) -> None:
    assert eventually(lambda: prometheus.values(query) == [value]), prometheus.values(query)


def test_prometheus_evaluates_all_rules_without_errors(prometheus: PrometheusServer) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    assert eventually(lambda: all(rule["health"] == "ok" for rule in rules()))
    assert [rule.get("lastError") for rule in rules() if rule.get("lastError")] == []
