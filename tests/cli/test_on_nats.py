"""The same commands on NATS: one round through all groups."""

import asyncio
from pathlib import Path

import nats
import pytest

from mainspring import Mainspring
from tests.cli.jobs_by_reason import JobsByReason
from tests.cli.shop_program import ENVIRONMENT, ShopProgram
from tests.cli.test_explain import WITH_A_WORKER, paragraphs, told
from tests.nats.servers import Servers

pytestmark = pytest.mark.long

UNAVAILABLE = 3


@pytest.fixture
def nats_shop(
    shop: ShopProgram, nats_server: Servers, nats_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ShopProgram:
    """A shop on NATS, with its cache in a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path / "cache"))
    shop.url = f"{nats_server.url}?prefix={nats_prefix}"
    return shop


def test_jobs_are_operated_on_nats_as_on_a_file(nats_shop: ShopProgram) -> None:
    shop = nats_shop
    submitted = shop.run(
        *("submit", "cancel_order", "order_id=1", "--id", "one", "--delay", "1h"),
        *("--app", "shop:app", "--url", shop.url),
    )
    assert submitted.output == "one\n"
    shop.make_dead_letters("dead")
    listed = shop.run_on_store("jobs", "list", "--json").json["jobs"]
    assert {job["id"]: job["status"] for job in listed} == {"one": "PENDING", "dead": "FAILED"}
    assert shop.run_on_store("explain", "one").output.startswith("Job one (shop.cancel_order) is due at ")
    assert shop.run_on_store("queues", "pause", "orders").output == "orders paused\n"
    (replayed,) = shop.run_on_store("dlq", "replay", "--all", "--json").json["replayed"]
    assert replayed["letter"] == "dead"
    assert shop.run_on_store("schedules", "list", "--json").json == {"schedules": []}


def test_jobs_are_searched_and_canceled_on_nats_as_on_a_file(nats_shop: ShopProgram) -> None:
    shop = nats_shop
    for number in range(4):
        shop.submit({"order_id": number % 2}, id=f"job-{number}")
    shop.make_dead_letters("dead")
    found = shop.run_on_store("jobs", "list", "--argument", "order_id=1", "--since", "2h", "--json").json
    assert [job["id"] for job in found["jobs"]] == ["dead", "job-3", "job-1"]
    assert (
        shop.run_on_store("jobs", "list", "--argument", "order_id=1", "--until", "2h", "--json").json["jobs"] == []
    )
    done = shop.run_on_store("jobs", "cancel", "--argument", "order_id=1", "--yes")
    assert (done.code, done.output) == (0, "canceled 2 jobs\n")
    assert shop.run_on_store("jobs", "run-now", "job-0").output == "job-0 due now\n"
    assert [job["id"] for job in shop.run_on_store("dlq", "list", "--json").json["jobs"]] == ["dead"]
    with shop.open() as app, app.running():
        (worker,) = shop.run_on_store("workers", "list", "--json").json["workers"]
        assert (worker["state"], worker["types"]) == ("alive", ["shop.cancel_order"])


CAUSES = (
    *("later", "retrying", "paused", "behind", "rated", "full", "unknown", "unserved", "queued", "overtime"),
    *("failed", "blocked"),
)


def test_causes_are_told_on_nats_as_on_a_file(nats_shop: ShopProgram) -> None:
    with Mainspring(nats_shop.url, grace=0) as app:
        JobsByReason(app.manager().engine).make_all()
        done = nats_shop.run_on_store("explain", *CAUSES)
    expected = paragraphs(WITH_A_WORKER)
    assert (done.code, told(done.output, "--url", nats_shop.url)) == (0, {name: expected[name] for name in CAUSES})


def test_a_server_that_is_not_there_is_unavailable(shop: ShopProgram) -> None:
    done = shop.run("jobs", "list", "--url", "nats://127.0.0.1:1")
    assert done.code == UNAVAILABLE
    assert done.error_line.startswith("mainspring: NATS at 127.0.0.1:1: ")


def test_a_measurement_has_streams_of_its_own_and_deletes_them(
    nats_shop: ShopProgram, nats_server: Servers, nats_prefix: str
) -> None:
    nats_shop.url += f"&projection={nats_shop.folder / 'copy.db'}&lease=30"
    done = nats_shop.run_on_store("bench", "--seconds", "0.02", "--jobs", "200", "--json")
    assert done.code == 0
    assert done.json["engine"]["engine"].startswith("NATS 2.")
    assert {"submit", "drain", "lateness", "size"} <= set(done.json["figures"])
    assert stream_names(nats_server).isdisjoint({nats_prefix})  # that of the user was not even made
    assert [name for name in stream_names(nats_server) if name.startswith("bench-")] == []
    assert {file.name for file in nats_shop.folder.iterdir()} == {"shop.py"}  # no copy of lists either


def stream_names(server: Servers) -> set[str]:
    async def ask() -> set[str]:
        client = await nats.connect(server.urls)
        try:
            return {str(info.config.name) for info in await client.jetstream().streams_info()}
        finally:
            await client.close()

    return asyncio.run(ask())
