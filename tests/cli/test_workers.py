"""`mainspring workers`: the workers of a store, alive or not."""

from mainspring.jobs.engine import Demand
from mainspring.jobs.records import RemoteTerms, WorkerInfo
from tests.cli.shop_program import ShopProgram


def test_a_worker_is_listed_while_it_runs(shop: ShopProgram) -> None:
    with shop.open() as app, app.running():
        (worker,) = shop.run_on_store("workers", "list", "--json").json["workers"]
        (here,) = app.workers()
        table = shop.run_on_store("workers", "list").output.splitlines()
    assert (worker["number"], worker["name"], worker["state"]) == (here.number, here.name, "alive")
    assert worker["types"] == ["shop.cancel_order"]
    assert worker["heartbeat"].endswith("Z")
    assert table[0].split() == ["NUMBER", "NAME", "STATE", "HEARTBEAT", "QUEUES", "HANDLERS"]
    assert table[1].split()[:3] == [str(here.number), here.name, "alive"]
    assert table[1].endswith("  all     shop.cancel_order")


def test_a_store_without_workers_is_an_answer_and_no_failure(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    done = shop.run_on_store("workers", "list")
    assert (done.code, done.output) == (0, "")
    assert done.errors == "no workers; mainspring run module:app starts one\n"
    assert shop.run_on_store("workers", "list", "--json").json == {"workers": []}


def test_a_worker_whose_process_has_ended_is_dead(shop: ShopProgram) -> None:
    with shop.open() as app:
        engine = app.manager().engine
        with engine.unit(durable=False):
            number = engine.enroll(WorkerInfo("far:1", 1, ("shop.cancel_order",), ("orders", "mail")))
        assert [str(worker.state) for worker in app.workers()] == ["alive"]
    # The lock file of the worker is free from here on.
    (worker,) = shop.run_on_store("workers", "list", "--json").json["workers"]
    assert (worker["number"], worker["name"], worker["state"]) == (number, "far:1", "dead")
    assert worker["queues"] == ["orders", "mail"]
    assert "  mail, orders  " in shop.run_on_store("workers", "list").output


def test_a_remote_worker_is_directed(shop: ShopProgram) -> None:
    with shop.open() as app:
        engine = app.manager().engine
        with engine.unit(durable=False):
            terms = RemoteTerms("token 1", 3_600_000_000)
            number = engine.enroll(WorkerInfo("node-1", 0, ("resize",), remote=terms))
        assert "node-1 (remote)" in shop.run_on_store("workers", "list").output
        done = shop.run_on_store("workers", "direct", str(number), "quiet")
        assert (done.code, done.output) == (0, f"worker {number} is asked to be quiet\n")
        again = shop.run_on_store("workers", "direct", str(number), "quiet", "--json")
        assert again.json == {"number": number, "direction": "quiet", "changed": False}
        (worker,) = shop.run_on_store("workers", "list", "--json").json["workers"]
        assert (worker["is_remote"], worker["direction"]) == (True, "quiet")
        refused = shop.run_on_store("workers", "direct", str(number + 1), "terminate")
        assert refused.code == 1
        assert f"there is no remote worker {number + 1}: it never enrolled" in refused.errors
        assert "mainspring workers list shows all workers" in refused.errors
        assert [entry.action for entry in app.audit()] == ["worker.quiet"]


def test_a_remote_worker_is_removed_and_loses_its_jobs(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1}, delay=0)
    with shop.open() as app:
        engine = app.manager().engine
        with engine.unit(durable=False):
            terms = RemoteTerms("token 1", 3_600_000_000)
            number = engine.enroll(WorkerInfo("node-1", 0, ("shop.cancel_order",), remote=terms))
        (lease,) = engine.take(number, [Demand(("shop.cancel_order",), 1, 0)], lead=0, start_lead=0).leases
        done = shop.run_on_store("workers", "remove", str(number))
        assert (done.code, done.output) == (0, f"worker {number} is removed; jobs that run elsewhere: 1\n")
        assert not engine.renew(number)
        assert engine.sweep(0).rescued == [lease.id]
        assert app.get(lease.id).interruptions == 1
        assert [entry.action for entry in app.audit()] == ["worker.remove"]
        again = shop.run_on_store("workers", "remove", str(number), "--json")
        assert again.code == 1
        assert f"there is no remote worker {number}" in again.errors


def test_a_dead_worker_is_removed_and_a_living_one_of_the_application_is_not(shop: ShopProgram) -> None:
    with shop.open() as app:
        engine = app.manager().engine
        with engine.unit(durable=False):
            number = engine.enroll(WorkerInfo("far:1", 1, ("shop.cancel_order",)))
        refused = shop.run_on_store("workers", "remove", str(number))
        assert (refused.code, "is alive and is a process of the application" in refused.errors) == (1, True)
    # The lock file of the worker is free from here on.
    done = shop.run_on_store("workers", "remove", str(number), "--json")
    assert (done.code, done.json) == (0, {"number": number, "released": []})
    with shop.open() as app:
        app.manager().engine.sweep(0)
        assert app.workers() == []
