"""The collector exports the agreed metrics, counts nothing twice, and survives a store that fails or hangs."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest, make_asgi_app
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from mainspring import EngineUnavailable, Mainspring, Retry
from mainspring.jobs.histogram import BOUNDS
from mainspring.monitoring import PrometheusCollector
from mainspring.monitoring.metrics import METRICS, MetricKind, MetricScope
from tests.support import PATIENCE, Gate, eventually, within

AGREED = {
    "mainspring_jobs_submitted_total": (MetricKind.COUNTER, {"queue", "type"}),
    "mainspring_attempts_total": (MetricKind.COUNTER, {"queue", "type", "outcome"}),
    "mainspring_retries_total": (MetricKind.COUNTER, {"queue", "type"}),
    "mainspring_job_lateness_seconds": (MetricKind.HISTOGRAM, {"queue", "type", "kind"}),
    "mainspring_job_duration_seconds": (MetricKind.HISTOGRAM, {"queue", "type", "kind"}),
    "mainspring_jobs": (MetricKind.GAUGE, {"queue", "state"}),
    "mainspring_oldest_due_seconds": (MetricKind.GAUGE, {"queue"}),
    "mainspring_dead_letters": (MetricKind.GAUGE, {"queue"}),
    "mainspring_workers": (MetricKind.GAUGE, {"kind"}),
    "mainspring_slots": (MetricKind.GAUGE, {"kind"}),
    "mainspring_slots_busy": (MetricKind.GAUGE, {"kind"}),
    "mainspring_wheel_timers": (MetricKind.GAUGE, {"level"}),
    "mainspring_wheel_slots_used": (MetricKind.GAUGE, {"level"}),
    "mainspring_wheel_fullest_slot": (MetricKind.GAUGE, {"level"}),
    "mainspring_store_commit_seconds": (MetricKind.HISTOGRAM, {"engine"}),
    "mainspring_store_commit_operations": (MetricKind.HISTOGRAM, {"engine"}),
    "mainspring_pool_tasks": (MetricKind.GAUGE, {"pool", "state"}),
}


class Scraper:
    """Scrapes a collector as Prometheus does, and reads the text."""

    def __init__(self, collector: PrometheusCollector) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(collector)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def kinds(self) -> dict[str, str]:
        """Return the kind of each exported metric that has samples."""
        return {family.name: family.type for family in parse_text(self.text()) if family.samples}

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the values of a metric by the values of its labels, in the order of the definition."""
        labels = METRICS[name].labels if name in METRICS else ()
        return {
            tuple(sample.labels[label] for label in labels): sample.value
            for family in parse_text(self.text())
            for sample in family.samples
            if sample.name == name
        }

    def buckets(self, name: str) -> list[tuple[str, float]]:
        """Return the bounds and counts of the buckets of a histogram."""
        return [
            (sample.labels["le"], sample.value)
            for family in parse_text(self.text())
            for sample in family.samples
            if sample.name == f"{name}_bucket"
        ]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Mainspring]:
    with Mainspring(f"sqlite:///{tmp_path}/shop.db", durability="normal", grace=0, threads=2) as app:
        yield app


def test_the_metrics_have_the_agreed_names_kinds_and_labels() -> None:
    for name, (kind, labels) in AGREED.items():
        assert (METRICS[name].kind, set(METRICS[name].labels)) == (kind, labels), name


def test_registering_and_scraping_a_process_open_no_store(shop: Mainspring, tmp_path: Path) -> None:
    Scraper(PrometheusCollector(shop, store=True))  # registered, not scraped
    assert Scraper(PrometheusCollector(shop)).text() == ""
    assert not shop.is_open
    assert list(tmp_path.iterdir()) == []


def test_the_description_is_what_a_scrape_exports(shop: Mainspring) -> None:
    @shop.job
    def work() -> None: ...

    for store in (False, True):
        collector = PrometheusCollector(shop, store=store)
        with shop.running():
            work.submit()
            exported = {(family.name, family.type, family.documentation) for family in collector.collect()}
        assert exported == {(family.name, family.type, family.documentation) for family in collector.describe()}
        of_store = {name for name, metric in METRICS.items() if metric.scope is MetricScope.STORE}
        assert {name for name, _, _ in exported} & of_store == (of_store if store else set())


def test_a_registry_refuses_two_collectors_with_the_same_metrics(shop: Mainspring) -> None:
    scraper = Scraper(PrometheusCollector(shop))
    with pytest.raises(ValueError, match="mainspring_jobs_submitted"):
        scraper.registry.register(PrometheusCollector(shop))


# -- what this process did


def test_a_process_exports_what_it_did(shop: Mainspring) -> None:
    @shop.job(name="good", queue="mail")
    def good() -> None: ...

    @shop.job(name="bad", queue="mail", retry=Retry(max_attempts=2, base=0.001, jitter=0))
    def bad() -> None:
        raise ValueError("no")

    scraper = Scraper(PrometheusCollector(shop))
    with shop.running():
        handles = [good.submit(), good.after(3600).submit(), bad.submit()]
        shop.run_now(handles[1].id)
        for handle in handles:
            handle.wait(PATIENCE)
        assert eventually(lambda: sum(scraper.samples("mainspring_attempts_total").values()) == 4)
        assert scraper.samples("mainspring_jobs_submitted_total") == {("mail", "good"): 2, ("mail", "bad"): 1}
        assert scraper.samples("mainspring_attempts_total") == {
            ("mail", "good", "completed"): 2,
            ("mail", "bad", "failed"): 2,
        }
        assert scraper.samples("mainspring_retries_total") == {("mail", "bad"): 1}
        for name in ("mainspring_job_lateness_seconds", "mainspring_job_duration_seconds"):
            text = [line for line in scraper.text().splitlines() if line.startswith(f"{name}_count")]
            counts = {line.rpartition(" ")[0].partition("{")[2]: float(line.rpartition(" ")[2]) for line in text}
            assert counts == {
                'kind="immediate",queue="mail",type="good"}': 1,
                'kind="delayed",queue="mail",type="good"}': 1,
                'kind="immediate",queue="mail",type="bad"}': 1,
                'kind="delayed",queue="mail",type="bad"}': 1,
            }


def test_lateness_and_duration_have_buckets_from_a_millisecond_to_six_hours(shop: Mainspring) -> None:
    @shop.job
    def work() -> None: ...

    scraper = Scraper(PrometheusCollector(shop))
    with shop.running():
        work.submit().wait(PATIENCE)
        assert eventually(lambda: bool(scraper.buckets("mainspring_job_duration_seconds")))
        for name in ("mainspring_job_lateness_seconds", "mainspring_job_duration_seconds"):
            bounds, counts = zip(*scraper.buckets(name), strict=True)
            assert list(map(float, bounds)) == [*(bound / 1e6 for bound in BOUNDS), float("inf")]
            assert (bounds[0], bounds[-2:], counts[-1]) == ("0.001", ("21600.0", "+Inf"), 1)
            assert list(counts) == sorted(counts)
            assert "5.0" in bounds  # the objective of the alerts


def test_a_worker_exports_its_slots_its_health_and_its_pools(shop: Mainspring) -> None:
    gate = Gate()

    @shop.job
    def hold() -> None:
        gate()

    scraper = Scraper(PrometheusCollector(shop))
    with shop.running():
        hold.submit()
        gate.wait_until_entered()
        assert scraper.samples("mainspring_slots")["threads",] == 2
        assert scraper.samples("mainspring_slots_busy")["threads",] == 1
        assert scraper.samples("mainspring_slots_busy")["coroutines",] == 0
        assert scraper.samples("mainspring_pool_tasks")["mainspring-jobs", "active"] >= 1
        everything_passed = {("responsive",): 1.0, ("store",): 1.0, ("claims",): 1.0}
        assert eventually(lambda: scraper.samples("mainspring_worker_healthy") == everything_passed)
        gate.open()
    assert scraper.samples("mainspring_worker_healthy") == {}
    assert scraper.samples("mainspring_slots") == {}


def test_the_wheel_is_exported_by_level(shop: Mainspring) -> None:
    scraper = Scraper(PrometheusCollector(shop))
    shop.counts()
    levels = {("open",), ("near",), ("mid",), ("far",)}
    assert scraper.samples("mainspring_wheel_timers").keys() == levels
    assert scraper.samples("mainspring_wheel_slots_used").keys() == levels
    assert scraper.samples("mainspring_wheel_fullest_slot").keys() == levels


def test_commits_are_exported_with_the_engine(shop: Mainspring) -> None:
    @shop.job
    def work() -> None: ...

    scraper = Scraper(PrometheusCollector(shop))
    work.submit_many([()] * 50)
    text = scraper.text()
    assert 'mainspring_store_commit_seconds_count{engine="sqlite"} 1.0' in text
    assert 'mainspring_store_commit_operations_sum{engine="sqlite"} 50.0' in text


# -- what the store holds


def test_the_store_tells_due_blocked_and_scheduled_jobs_apart(shop: Mainspring) -> None:
    @shop.job(name="mail", queue="mail")
    def mail() -> None: ...

    @shop.job(name="report", queue="reports")
    def report() -> None: ...

    scraper = Scraper(PrometheusCollector(shop, store=True))
    mail.submit_many([()] * 3)
    mail.after(3600).submit()
    report.submit()
    shop.queue("reports").pause()
    jobs = {labels: count for labels, count in scraper.samples("mainspring_jobs").items() if count}
    assert jobs == {("mail", "due"): 3, ("mail", "scheduled"): 1, ("reports", "blocked"): 1}
    assert scraper.samples("mainspring_oldest_due_seconds")["mail",] >= 0
    assert scraper.samples("mainspring_oldest_due_seconds")["reports",] == 0
    assert scraper.samples("mainspring_dead_letters") == {("mail",): 0, ("reports",): 0}
    assert scraper.samples("mainspring_upcoming_slot_jobs") == {("mail",): 1}
    assert scraper.samples("mainspring_store_up") == {(): 1}


def test_due_jobs_without_a_worker_are_those_of_unserved_queues_and_unknown_handlers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with (
        Mainspring(url, queues=["mail"], grace=0) as worker,
        Mainspring(url) as submitter,
    ):
        submitter.job(name="renamed", queue="mail")(lambda: None).submit()
        submitter.job(name="sent", queue="mial")(lambda: None).submit_many([()] * 2)
        submitter.job(name="later", queue="mial")(lambda: None).after(3600).submit()
        submitter.queue("paused").pause()
        submitter.job(name="paused", queue="paused")(lambda: None).submit()
        worker.job(name="sent", queue="mail")(lambda: None)
        scraper = Scraper(PrometheusCollector(submitter, store=True))
        assert scraper.samples("mainspring_workers") == {("alive",): 0, ("silent",): 0, ("dead",): 0}
        with worker.running():
            assert scraper.samples("mainspring_jobs_without_worker") == {
                ("mail",): 1,
                ("mial",): 2,
                ("paused",): 0,
            }
            assert scraper.samples("mainspring_workers") == {("alive",): 1, ("silent",): 0, ("dead",): 0}


def test_the_sum_over_processes_counts_nothing_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with Mainspring(url, grace=0) as web, Mainspring(url, grace=0) as worker, Mainspring(url) as server:
        for app in (web, worker, server):
            app.job(name="work", queue="mail")(lambda: None)
        scrapers = [
            Scraper(PrometheusCollector(web)),
            Scraper(PrometheusCollector(worker)),
            Scraper(PrometheusCollector(server, store=True)),
        ]

        def total(name: str) -> float:
            return sum(sum(scraper.samples(name).values()) for scraper in scrapers)

        web.registry.get("work")
        ids = [web.manager().submit("work") for _ in range(5)]
        assert total("mainspring_jobs") == 5
        with worker.running():
            for job_id in ids:
                web.handle(job_id).wait(PATIENCE)
            assert eventually(lambda: total("mainspring_attempts_total") == 5)
        assert total("mainspring_jobs_submitted_total") == 5
        assert total("mainspring_jobs") == 0


def test_queues_beyond_the_limit_are_exported_together(shop: Mainspring) -> None:
    for name in "abcd":
        shop.job(name=name, queue=name)(lambda: None).submit()
    scraper = Scraper(PrometheusCollector(shop, store=True, max_queues=2))
    due = {queue: n for (queue, state), n in scraper.samples("mainspring_jobs").items() if state == "due"}
    assert due == {"a": 1, "b": 1, "other": 2}
    shop.cancel(shop.jobs(queue="a")[0].id)
    due = {queue: n for (queue, state), n in scraper.samples("mainspring_jobs").items() if state == "due"}
    assert due == {"b": 1, "other": 2}  # no series changes its meaning


# -- a store that does not answer


def test_a_failing_store_costs_the_metrics_of_the_store_only(
    shop: Mainspring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop.job(name="work", queue="mail")(lambda: None).submit()
    scraper = Scraper(PrometheusCollector(shop, store=True))

    def fail() -> Any:
        raise EngineUnavailable(engine="SQLite", reason="the disk is full", remedy="make room")

    with caplog.at_level(logging.INFO, "mainspring.monitoring"), monkeypatch.context() as patch:
        patch.setattr(shop, "statistics", fail)
        for _ in range(2):
            assert scraper.samples("mainspring_store_up") == {(): 0}
            assert scraper.samples("mainspring_jobs_submitted_total") == {("mail", "work"): 1}
            assert "mainspring_jobs" not in scraper.kinds()
    with caplog.at_level(logging.INFO, "mainspring.monitoring"):
        assert scraper.samples("mainspring_store_up") == {(): 1}
    messages = [record.getMessage() for record in caplog.records if record.name == "mainspring.monitoring"]
    assert len(messages) == 2  # once when it fails, and once when it works again
    assert "the disk is full" in messages[0]


def test_a_hanging_store_delays_a_scrape_by_the_timeout_and_is_asked_once(
    shop: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.job(name="work", queue="mail")(lambda: None).submit()
    scraper = Scraper(PrometheusCollector(shop, store=True, timeout=timedelta(milliseconds=200)))
    answers = Event()
    calls: list[None] = []
    statistics = shop.statistics

    def hang() -> Any:
        calls.append(None)
        assert answers.wait(PATIENCE)
        return statistics()

    monkeypatch.setattr(shop, "statistics", hang)
    for _ in range(3):
        assert within(lambda: scraper.samples("mainspring_store_up")) == {(): 0}
    assert scraper.samples("mainspring_jobs_submitted_total") == {("mail", "work"): 1}
    assert len(calls) == 1
    answers.set()
    assert eventually(lambda: scraper.samples("mainspring_store_up") == {(): 1})


def test_many_scrapes_at_once_on_the_threads_of_the_application_wait_for_no_thread(shop: Mainspring) -> None:
    shop.job(name="work", queue="mail")(lambda: None).submit()
    scraper = Scraper(PrometheusCollector(shop, store=True, timeout=PATIENCE))

    async def scrape_all() -> list[dict[tuple[str, ...], float]]:
        scrapes = (shop.off_loop.read(scraper.samples, "mainspring_store_up") for _ in range(20))
        return await asyncio.gather(*scrapes)

    assert within(lambda: asyncio.run(scrape_all())) == [{(): 1}] * 20


# -- formats, and the process of the user


def test_both_formats_can_be_parsed(shop: Mainspring) -> None:
    @shop.job
    def work() -> None: ...

    scraper = Scraper(PrometheusCollector(shop, store=True))
    with shop.running():
        work.submit().wait(PATIENCE)
        expected = {name.removesuffix("_total") for name in METRICS}
        assert {family.name for family in parse_text(scraper.text())} == expected
        openmetrics: Any = exposition, parser  # both have no types
        text = openmetrics[0].generate_latest(scraper.registry).decode()
        assert {family.name for family in openmetrics[1].text_string_to_metric_families(text)} == expected


def test_it_works_in_an_asgi_application(shop: Mainspring) -> None:
    scraper = Scraper(PrometheusCollector(shop))
    shop.counts()
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    asyncio.run(make_asgi_app(scraper.registry)(scope, receive, send))
    assert sent[0]["status"] == 200
    assert b"mainspring_pool_tasks" in sent[1]["body"]


def test_wrong_options_are_refused_with_the_value(shop: Mainspring) -> None:
    wrong: Any = "shop:app"
    with pytest.raises(TypeError, match=r"app must be a Mainspring such as .*, got 'shop:app'"):
        PrometheusCollector(wrong)
    with pytest.raises(ValueError, match="max_queues"):
        PrometheusCollector(shop, max_queues=0)
    with pytest.raises(ValueError, match="timeout"):
        PrometheusCollector(shop, store=True, timeout=-1)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import mainspring.monitoring as package  # noqa: PLC0415 - so that its submodule can be forgotten

    monkeypatch.delitem(sys.modules, "mainspring.monitoring.prometheus")
    monkeypatch.delattr(package, "prometheus", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client.registry", None)
    with pytest.raises(ImportError, match=r"pip install 'mainspring\[metrics\]'"):
        _ = package.PrometheusCollector
