"""The checklist for production, carried out: its commands run, and its checks tell order from disorder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import JobStatus, Mainspring, Retry
from mainspring.clock import SystemClock
from mainspring.doctor.findings import Severity
from mainspring.foreground.health_files import FOLDER_VARIABLE
from tests.cli.shop_program import ENVIRONMENT, CommandResult, ShopProgram
from tests.nats.servers import Servers
from tests.nats.stream_edits import edit_stream
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"^\| (?P<number>\d+) \| .+? \| (?P<how>.+?) "
    r"\| `mainspring (?P<command>[^`]+)`(?: \((?P<checks>.+?)\))? \| `tests/.+?` \|$",
    re.MULTILINE,
)
ITEMS = 22

SOUND = """
from mainspring import CallbackPolicy, Mainspring

app = Mainspring("sqlite:///shop.db", callbacks=CallbackPolicy(allow=["https://hooks.example.com/*"]))


@app.job
def ping() -> None: ...
"""

DISORDERLY = """
from threading import Event

from mainspring import CallbackPolicy, Mainspring, Retry

callbacks = CallbackPolicy(allow=["http://hooks.example.com/*"], allow_http=True)
app = Mainspring("sqlite:///shop.db", durability="normal", callbacks=callbacks, grace=0)
app.queue("full", max_depth=2)


@app.job
def hang() -> None:
    Event().wait(1_000)


@app.job(retry=Retry(max_attempts=1))
def fail() -> None:
    raise RuntimeError("out of stock")


@app.job(queue="full")
def wait() -> None: ...
"""

OF_CLUSTERS = {"replicas", "round-trip", "lease"}
"""Checks whose disorder needs a cluster: `tests/unit/doctor/test_nats_checks.py` has them."""
OF_DISKS = {"fsync"}
"""Checks whose disorder needs a slow disk: `tests/unit/doctor/test_sqlite_location.py` has them."""
OF_SERVERS = {"server", "sync"}
"""Checks whose disorder needs another server: `tests/unit/doctor/test_nats_checks.py` has them."""


@dataclass(frozen=True)
class Item:
    """A row of the checklist."""

    number: int
    how: str
    """How the item is met."""
    command: tuple[str, ...]
    checks: frozenset[str]
    """The names of the doctor's checks."""


def read_items() -> dict[int, Item]:
    text = (ROOT / "docs" / "checklist.md").read_text()
    rows = [row.groupdict() for row in ROW.finditer(text)]
    return {
        int(row["number"]): Item(
            number=int(row["number"]),
            how=row["how"],
            command=tuple(row["command"].split()),
            checks=frozenset(re.findall(r"`([^`]+)`", row["checks"] or "")),
        )
        for row in rows
    }


ALL = read_items()


@pytest.fixture(autouse=True)
def own_health_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `healthcheck` see the workers of one test only, not others of this user."""
    monkeypatch.setitem(ENVIRONMENT, FOLDER_VARIABLE, str(tmp_path))


def severities(report: dict[str, Any]) -> dict[str, Severity]:
    """Return the worst severity of each check in the doctor's JSON."""
    worst: dict[str, Severity] = {}
    for finding in report["findings"]:
        severity = Severity(finding["severity"])
        worst[finding["check"]] = max(worst.get(finding["check"], severity), severity, key=lambda one: one.rank)
    return worst


def test_it_has_all_items() -> None:
    assert list(ALL) == list(range(1, ITEMS + 1))


def test_the_default_policy_of_retries_is_the_one_that_the_checklist_states() -> None:
    (stated,) = re.findall(r"`(Retry\(.*?\))`", ALL[4].how)
    assert eval(stated, {"Retry": Retry}) == Retry()  # the text of the checklist, written in this repository


class Checklist:
    """A shop with the module of a test, on which the commands of the checklist run."""

    def __init__(self, shop: ShopProgram, module: str) -> None:
        self.shop = shop
        (shop.folder / "shop.py").write_text(module)

    def run(self, number: int, *more: str) -> CommandResult:
        """Run the command of an item on the application."""
        return self.shop.run_with_app(*ALL[number].command, *more)

    def examine(self) -> dict[str, Severity]:
        """Run `doctor --strict --json`; return the worst severity of each check."""
        done = self.shop.run_with_app("doctor", "--strict", "--json")
        found = severities(done.json)
        assert done.code == any(severity.rank >= Severity.WARNING.rank for severity in found.values())
        return found

    def has_workers(self, number: int = 1) -> bool:
        """Return whether the store exists, which the first worker makes, and lists as many workers."""
        listed = self.run(3, "--json")
        return listed.code == 0 and len(listed.json["workers"]) == number

    def examine_workers(self) -> tuple[int, Severity]:
        """Run the command of item 10 with `--strict`; return its exit code and what it says about workers."""
        done = self.run(10, "--strict", "--json")
        return done.code, severities(done.json)["workers"]


OF_FILES = frozenset().union(*(item.checks for item in ALL.values())) - {"stream"} - OF_CLUSTERS - OF_SERVERS
"""The checks of the checklist that concern SQLite, or both engines."""


def test_the_checks_of_the_checklist_tell_order_from_disorder(shop: ShopProgram) -> None:
    sound = Checklist(shop, SOUND)
    worker = shop.start("run", "shop:app")
    try:
        assert eventually(lambda: sound.has_workers() and shop.run(*ALL[13].command).code == 0)
        found = sound.examine()
        slots = [listed["slots"] for listed in sound.run(18, "--json").json["workers"]]
    finally:
        worker.terminate()
        worker.communicate()
    assert slots == [{"threads": 8, "coroutines": 100, "processes": 2}]
    assert shop.run(*ALL[13].command).code == 1
    assert set(found) >= OF_FILES
    assert {check: found[check] for check in OF_FILES - OF_DISKS if found[check].rank > Severity.INFO.rank} == {}


def test_the_checklist_wants_three_workers(shop: ShopProgram) -> None:
    checklist = Checklist(shop, SOUND)
    workers = [shop.start("run", "shop:app")]
    try:
        assert eventually(checklist.has_workers)
        alone = checklist.examine_workers()
        workers += [shop.start("run", "shop:app") for _ in range(2)]
        assert eventually(lambda: checklist.has_workers(3))
        _, together = checklist.examine_workers()
        workers[-1].kill()
        assert eventually(lambda: checklist.examine_workers()[1] is Severity.WARNING)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert (alone, together) == ((1, Severity.WARNING), Severity.OK)


def test_the_checks_of_the_checklist_find_what_is_not_in_order(shop: ShopProgram) -> None:
    checklist = Checklist(shop, DISORDERLY)
    worker = shop.start("run", "shop:app", "--threads", "1")
    try:
        make_disorder(shop.url)
        found = checklist.examine()
        dead = checklist.run(5, "--json").json["jobs"]
        failed = checklist.run(16, "--status", "failed", "--json").json["jobs"]
        shown = checklist.run(4, "failed").output
    finally:
        worker.kill()
        worker.communicate()
    assert [letter["id"] for letter in dead] == [job["id"] for job in failed] == ["failed"]
    assert re.search(r"^attempts +1 started \(1 failed\)", shown, re.MULTILINE), shown
    assert {check for check in OF_FILES - OF_DISKS if found[check] is Severity.OK} == {"workers"}


def make_disorder(url: str) -> None:
    """Make a dead letter, a hanging job, overdue jobs that fill a quota, and many jobs of one instant."""
    with Mainspring(url, durability="normal") as app:

        @app.job(name="shop.fail", retry=Retry(max_attempts=1))
        def fail() -> None: ...

        @app.job(name="shop.hang")
        def hang() -> None: ...

        @app.job(name="shop.wait", queue="full")
        def wait() -> None: ...

        assert fail.options(id="failed").submit().wait(PATIENCE) is JobStatus.FAILED
        hanging = hang.submit()
        eventually(lambda: hanging.status() is JobStatus.RUNNING)
        now = SystemClock().now()
        wait.at(now - timedelta(minutes=5)).submit_many([{}] * 2)
        hang.at(now + timedelta(hours=1)).submit_many([{}] * 3_000)


def test_the_benchmark_of_the_checklist_measures_lateness_and_throughput(shop: ShopProgram) -> None:
    figures = [shop.run(*ALL[number].command, "--seconds", "0.02", "--jobs", "200", "--json") for number in (6, 9)]
    assert [done.code for done in figures] == [0, 0]
    assert figures[0].json["figures"]["lateness"]["p50_ms"] > 0
    assert figures[1].json["figures"]["drain"]["per_second"] > 0


def test_the_keys_of_the_checklist_are_listed(shop: ShopProgram) -> None:
    assert shop.run("keys", "create", "2026-11").code == 0
    listed = shop.run(*ALL[19].command)
    assert (listed.code, "2026-11" in listed.output) == (0, True)


def test_the_rights_of_the_checklist_are_those_of_three_roles(shop: ShopProgram) -> None:
    printed = shop.run(*ALL[22].command, "--json")
    assert printed.code == 0
    assert {grant["role"] for grant in printed.json} == {"submitter", "worker", "operator"}


def test_the_checks_of_the_checklist_tell_order_from_disorder_on_nats(
    shop: ShopProgram, nats_server: Servers, nats_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(shop.folder))
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(shop.folder))
    url = f"{nats_server.url}?prefix={nats_prefix}"
    with Mainspring(url) as app:
        app.counts()
    checklist = Checklist(shop, SOUND.replace("sqlite:///shop.db", url))
    found = checklist.examine()
    checks = ALL[1].checks | OF_CLUSTERS | OF_SERVERS
    assert set(found) >= checks
    assert {check: found[check] for check in checks - OF_CLUSTERS if found[check].rank > Severity.INFO.rank} == {}
    edit_stream(nats_server, nats_prefix, max_age=3_600_000_000_000)
    assert checklist.examine()["stream"] is Severity.ERROR
