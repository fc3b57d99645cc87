"""Tests of the HTTP API of remote workers that hold for every engine: each engine's module subclasses this."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from mainspring import Concurrency, KeyRing, Mainspring, Retry
from mainspring.jobs.engine import Taken
from mainspring.jobs.job_policies import SIGNATURE
from mainspring.security.http_limits import HttpLimits
from mainspring.security.permissions import Identity, Permissions, Scope
from tests.api_site import ApiSite
from tests.asgi_client import Answer
from tests.support import PATIENCE, eventually


def add_remote_jobs(app: Mainspring) -> None:
    """Declare the remote job types of these tests."""

    @app.job(name="local.note", queue="notes")
    def note(result: Any = None) -> None: ...

    app.remote_job("resize", queue="images", retry=Retry(max_attempts=2, base=0), then=note)
    app.remote_job("plain", timeout=3600)
    app.remote_job("late", timeout=0.001, retry=Retry(max_attempts=1))
    app.remote_job("one", concurrency=Concurrency(1))
    app.remote_job("once", at_most_once=True)
    app.remote_job("secret", redact="card")


class RemoteClient:
    """A remote worker of a test."""

    def __init__(self, site: ApiSite, *types: str, token: str | None = None, **options: Any) -> None:
        self.site, self.token = site, token
        body = {"name": "tester", "types": list(types) or None, **options}
        answer = site.post("/workers", body, token=token)
        assert answer.status == 201, answer.body
        self.enrolled = answer.json
        self.number = self.enrolled["number"]

    def post(self, what: str, body: Any = None, *, token: str | None = None) -> Answer:
        return self.site.post(f"/workers/{self.number}/{what}", body, token=token or self.token)

    def claim(self, jobs: int = 1, wait: float = 0) -> list[dict[str, Any]]:
        answer = self.post("claim", {"jobs": jobs, "wait": wait})
        assert answer.status == 200, answer.body
        found: list[dict[str, Any]] = answer.json["jobs"]
        return found

    def claim_one(self) -> dict[str, Any]:
        """Claim a job; an engine may deliver it a moment after its submit."""
        (job,) = self.claim_all(1)
        return job

    def claim_all(self, number: int) -> list[dict[str, Any]]:
        """Claim jobs until there are so many."""
        found: list[dict[str, Any]] = []

        def has_all() -> bool:
            found.extend(self.claim(number - len(found)))
            return len(found) == number

        assert eventually(has_all)
        return found

    def settle(self, job: dict[str, Any], outcome: str, **more: Any) -> Answer:
        return self.post("settle", {"jobs": [{**key_of(job), "outcome": outcome, **more}]})

    def beat(self, *jobs: dict[str, Any]) -> Any:
        answer = self.post("heartbeat", {"jobs": [key_of(job) for job in jobs]})
        assert answer.status == 200, answer.body
        return answer.json

    def leave(self, token: str | None = None) -> Answer:
        return self.site.post(f"/workers/{self.number}", method="DELETE", token=token or self.token)


def key_of(job: dict[str, Any]) -> dict[str, Any]:
    return {"id": job["id"], "fencing_token": job["fencing_token"]}


class RemoteWorkerTests:
    """The API of remote workers."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def site(self, url: str) -> Iterator[ApiSite]:
        with Mainspring(url) as app:
            add_remote_jobs(app)
            yield ApiSite(app)

    def submit(self, site: ApiSite, type_: str = "plain", **options: Any) -> str:
        return site.submit(type_, delay=0, **options)

    # -- the life of a job

    def test_a_worker_claims_runs_and_settles_a_job(self, site: ApiSite) -> None:
        job_id = self.submit(site, "resize", arguments={"file": "cat.png", "width": 200})
        worker = RemoteClient(site, "resize", "plain")
        job = worker.claim_one()
        assert (job["id"], job["type"], job["queue"], job["attempt"]) == (job_id, "resize", "images", 1)
        assert job["arguments"] == {"file": "cat.png", "width": 200}
        assert site.app.get(job_id).status == "RUNNING"
        assert site.app.get(job_id).worker == worker.number
        first = worker.settle(job, "completed", result={"bytes": 4711})
        assert first.json["jobs"][0] == {
            **key_of(job), "accepted": True, "status": "COMPLETED", "due": None, "problem": None
        }  # fmt: skip
        assert site.app.get(job_id).result == {"bytes": 4711}
        again = worker.settle(job, "completed", result={"bytes": 4711})
        assert (again.status, again.json) == (first.status, first.json)
        assert site.app.counts()["PENDING"] == 1, "the follow-up job was stored once"

    def test_a_failure_is_retried_until_the_attempts_are_used_up(self, site: ApiSite) -> None:
        job_id = self.submit(site, "resize")
        worker = RemoteClient(site, "resize")
        job = worker.claim_one()
        failed = worker.settle(job, "failed", error="disk full")
        assert failed.json["jobs"][0]["status"] == "PENDING"
        assert worker.settle(job, "failed", error="disk full").json == failed.json
        second = worker.claim_one()
        assert (second["attempt"], second["fencing_token"] > job["fencing_token"]) == (2, True)
        stale = worker.settle(job, "completed")
        assert (stale.status, stale.problem) == (409, "lease-lost")
        assert "fencing token" in stale.json["detail"]
        assert not stale.json["jobs"][0]["accepted"]
        assert worker.settle(second, "failed", error="disk full").json["jobs"][0]["status"] == "FAILED"
        info = site.app.get(job_id)
        assert (info.status, info.failures, info.error) == ("FAILED", 2, "disk full")

    def test_a_worker_says_whether_and_when_to_retry(self, site: ApiSite) -> None:
        ids = [self.submit(site) for _ in range(5)]
        worker = RemoteClient(site, "plain")
        jobs = {job["id"]: job for job in worker.claim_all(5)}
        ends: list[dict[str, Any]] = [
            {"outcome": "failed", "error": "broken", "retry": False},
            {"outcome": "failed", "error": "busy", "retry_after": 600},
            {"outcome": "snoozed", "delay": 600},
            {"outcome": "canceled", "error": "not needed"},
            {"outcome": "released"},
        ]
        body = [{**key_of(jobs[job_id]), **end} for job_id, end in zip(ids, ends, strict=True)]
        answer = worker.post("settle", {"jobs": body})
        expected = ["FAILED", "PENDING", "PENDING", "CANCELED", "PENDING"]
        assert [each["status"] for each in answer.json["jobs"]] == expected
        assert worker.post("settle", {"jobs": body}).json == answer.json
        infos = [site.app.get(job_id) for job_id in ids]
        assert [str(info.status) for info in infos] == expected
        assert [info.failures for info in infos] == [1, 1, 0, 0, 0]
        assert infos[4].interruptions == 1
        assert (infos[1].due - infos[0].due).total_seconds() > 500

    def test_a_worker_gets_only_jobs_whose_signature_is_right(self, url: str) -> None:
        with (
            Mainspring(url) as unsigned,
            Mainspring(url, signing=KeyRing({"k": KeyRing.generate()}, sign_with="k")) as app,
        ):
            forged = unsigned.remote_job("resize", queue="images").submit(file="passwd").id
            add_remote_jobs(app)
            site = ApiSite(app)
            signed = self.submit(site, "resize", arguments={"file": "cat.png"})
            worker = RemoteClient(site, "resize")
            job = worker.claim_one()
            assert job["id"] == signed
            assert eventually(lambda: worker.claim() == [] and app.get(forged).status == "FAILED")
            assert str(app.get(forged).error) == "SignatureInvalid: it has no signature"
            worker.settle(job, "failed", error="disk full")
            again = worker.claim_one()
            assert (again["id"], again["attempt"]) == (signed, 2), "the retry needs no new signature"
            worker.settle(again, "completed")
            (follow_up,) = app.jobs(type="local.note")
            assert SIGNATURE in (app.manager().record(follow_up.id).headers or {})

    def test_a_settlement_tells_nothing_about_jobs_that_the_worker_does_not_serve(self, site: ApiSite) -> None:
        job_id = self.submit(site, "secret", arguments={"card": 1})
        other = RemoteClient(site, "secret")
        job = other.claim_one()
        token = site.token("work", types=["plain"])
        curious = RemoteClient(site, "plain", token=token)
        missing = curious.settle({**job, "id": "missing"}, "completed").json["detail"]
        assert curious.settle(job, "completed").json["detail"] == missing.replace("missing", job_id)
        other.settle(job, "completed")
        answer = curious.settle(job, "completed")
        assert (answer.status, answer.json["detail"]) == (409, missing.replace("missing", job_id))

    def test_a_server_that_can_only_verify_submits_nothing(self, url: str) -> None:
        with Mainspring(url, signing=KeyRing({"k": KeyRing.generate()})) as app:
            add_remote_jobs(app)
            answer = ApiSite(app).post("/jobs", {"type": "plain", "arguments": {}})
            assert (answer.status, answer.problem) == (501, "no-signing-key")
            assert "sign_with" in answer.json["detail"]
            assert app.counts()["PENDING"] == 0

    def test_a_job_that_is_canceled_is_asked_to_stop_by_the_next_heartbeat(self, site: ApiSite) -> None:
        job_id = self.submit(site)
        worker = RemoteClient(site, "plain")
        job = worker.claim_one()
        assert worker.beat(job)["jobs"] == [{**key_of(job), "state": "run", "reason": None}]
        assert site.app.cancel(job_id) is False
        assert worker.beat(job)["jobs"] == [{**key_of(job), "state": "stop", "reason": "cancel"}]
        settled = worker.settle(job, "failed", error="stopped").json["jobs"][0]
        assert settled["status"] == "CANCELED"
        assert worker.beat(job)["jobs"] == [{**key_of(job), "state": "lost", "reason": None}]

    @pytest.mark.parametrize("contact", ["heartbeat", "claim"])
    def test_a_canceled_job_that_its_worker_does_not_stop_ends_after_a_lease(
        self, site: ApiSite, contact: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id, other_id = self.submit(site), self.submit(site)
        worker = RemoteClient(site, "plain", lease=45)
        jobs = {job["id"]: job for job in worker.claim_all(2)}
        assert site.app.cancel(job_id) is False
        engine = site.app.manager().engine
        now = engine.now
        for seconds, status in ((29, "RUNNING"), (46, "CANCELED")):
            monkeypatch.setattr(engine, "now", lambda: now() + seconds * 1_000_000)  # noqa: B023
            if contact == "claim":
                worker.claim()
            elif status == "RUNNING":
                assert [each["state"] for each in worker.beat(*jobs.values())["jobs"]].count("stop") == 1
            else:
                states = {each["id"]: each["state"] for each in worker.beat(*jobs.values())["jobs"]}
                assert states == {job_id: "lost", other_id: "run"}
            assert str(site.app.get(job_id).status) == status
        monkeypatch.undo()
        assert site.app.get(job_id).error == "canceled: its worker did not stop it within its lease"
        late = worker.settle(jobs[job_id], "completed").json["jobs"][0]
        assert late["status"] == "CANCELED", "a late settlement changes nothing"
        assert str(site.app.get(job_id).status) == "CANCELED"
        assert worker.settle(jobs[other_id], "completed").json["jobs"][0]["status"] == "COMPLETED"

    def test_a_job_past_its_timeout_is_asked_to_stop_and_fails_by_its_timeout(self, site: ApiSite) -> None:
        job_id = self.submit(site, "late")
        worker = RemoteClient(site, "late")
        job = worker.claim_one()
        assert job["timeout"] == 0.001
        assert worker.beat(job)["jobs"] == [{**key_of(job), "state": "stop", "reason": "timeout"}]
        worker.settle(job, "failed", error="stopped")
        assert (site.app.get(job_id).timeouts, str(site.app.get(job_id).status)) == (1, "FAILED")

    def test_progress_comes_with_a_heartbeat_or_a_settlement(self, site: ApiSite) -> None:
        job_id = self.submit(site, "secret", arguments={"card": "4711-4711"})
        worker = RemoteClient(site, "secret")
        job = worker.claim_one()
        assert job["arguments"] == {"card": "4711-4711"}
        progress = {"done": 1, "total": 4, "note": "card 4711-4711"}
        worker.post("heartbeat", {"jobs": [{**key_of(job), "progress": progress}]})
        found = site.app.get(job_id).progress
        assert found is not None
        assert (found.done, found.total) == (1, 4)
        assert "4711" not in (found.note or "")
        answer = worker.settle(job, "progress", progress={"done": 2})
        assert answer.json["jobs"][0]["status"] == "RUNNING"
        assert site.app.get(job_id).progress.done == 2  # type: ignore[union-attr]
        worker.settle(job, "failed", error="card 4711-4711 refused", retry=False)
        assert "4711" not in (site.app.get(job_id).error or "")

    # -- limits

    def test_the_limits_of_a_type_hold_for_remote_workers(self, site: ApiSite) -> None:
        one, other = RemoteClient(site, "one"), RemoteClient(site, "one")  # the first one stores the limits
        for _ in range(2):
            self.submit(site, "one")
        job = one.claim_one()
        assert other.claim(5) == []
        one.settle(job, "completed")
        assert other.claim_one()["id"] != job["id"]

    def test_a_limit_holds_for_jobs_that_were_submitted_before_any_worker_enrolled(self, site: ApiSite) -> None:
        for _ in range(6):
            self.submit(site, "one")
        workers = [RemoteClient(site, "one") for _ in range(3)]
        done: set[str] = set()
        while len(done) < 6:
            found: list[tuple[RemoteClient, dict[str, Any]]] = []

            def claim() -> bool:
                found.extend((worker, job) for worker in workers for job in worker.claim(5))  # noqa: B023
                return bool(found)  # noqa: B023

            assert eventually(claim)
            assert len(found) == 1
            done.add(found[0][1]["id"])
            found[0][0].settle(found[0][1], "completed")

    # -- workers that leave

    def test_the_jobs_of_a_worker_that_leaves_run_again(self, site: ApiSite) -> None:
        job_id = self.submit(site)
        worker = RemoteClient(site, "plain")
        job = worker.claim_one()
        assert worker.leave().json == {"number": worker.number, "released": [job_id]}
        for answer in (
            worker.leave(),
            worker.post("claim"),
            worker.post("heartbeat"),
            worker.settle(job, "completed"),
        ):
            assert (answer.status, answer.problem) == (404, "worker-not-found")
        again = RemoteClient(site, "plain").claim_one()
        assert (again["id"], again["attempt"]) == (job_id, 1)

    def test_a_job_that_runs_at_most_once_is_not_given_to_another_worker(self, site: ApiSite) -> None:
        job_id = self.submit(site, "once")
        worker = RemoteClient(site, "once")
        worker.claim_one()
        worker.leave()
        assert str(site.app.get(job_id).status) == "FAILED"

    def test_a_silent_worker_loses_its_jobs_and_its_late_result_is_refused(self, site: ApiSite) -> None:
        job_id = self.submit(site)
        silent = RemoteClient(site, "plain", lease=1)
        job = silent.claim_one()
        other = RemoteClient(site, "plain")
        again = other.claim_one()
        assert (again["id"], again["attempt"]) == (job_id, 2)
        assert silent.settle(job, "completed").problem == "worker-not-found"
        assert site.app.get(job_id).crashes == 1
        other.settle(again, "completed")

    def test_a_claim_whose_answer_was_lost_is_found_by_heartbeats(self, site: ApiSite) -> None:
        self.submit(site)
        worker = RemoteClient(site, "plain", lease=1)
        worker.claim_one()  # the worker does not get the answer

        found: list[dict[str, Any]] = []

        def is_found() -> bool:
            worker.beat()
            found.extend(worker.claim())
            return bool(found)

        assert eventually(is_found)
        (job,) = found
        assert job["attempt"] == 1
        assert worker.settle(job, "completed").json["jobs"][0]["accepted"]

    # -- tokens that end, and leases that are too long

    def test_a_claim_that_waits_gets_nothing_after_its_token_was_revoked(self, site: ApiSite) -> None:
        worker = RemoteClient(site, "plain", token=site.token("work"))
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(worker.post, "claim", {"wait": 30})
            assert eventually(lambda: site.app.manager().remote_workers.waiting == 1)
            site.app.tokens.revoke(site.last_name)
            job_id = self.submit(site)
            answer = waiting.result(PATIENCE)
        assert (answer.status, answer.problem) == (401, "token-invalid")
        assert site.app.get(job_id).starts == 0

    def test_jobs_are_handed_back_if_the_token_is_revoked_while_they_are_claimed(
        self, site: ApiSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker = RemoteClient(site, "plain", token=site.token("work"))
        job_id = self.submit(site)
        remote = site.app.manager().remote_workers
        take = remote._take_within

        async def take_and_revoke(*arguments: Any) -> Taken | None:
            taken = await take(*arguments)
            if taken is not None and taken.leases:
                await site.app.tokens.revoke_async(site.last_name)
            return taken

        monkeypatch.setattr(remote, "_take_within", take_and_revoke)
        answer = worker.post("claim", {"wait": 30})
        monkeypatch.undo()
        assert (answer.status, answer.problem) == (401, "token-invalid")
        job = RemoteClient(site, "plain").claim_one()
        assert (job["id"], job["attempt"], site.app.get(job_id).interruptions) == (job_id, 1, 0)

    def test_a_claim_has_the_rights_that_the_caller_has_when_a_job_comes(self, url: str) -> None:
        allowed = Permissions(scopes=frozenset({Scope.WORK, Scope.SUBMIT}))
        with Mainspring(url) as app:
            add_remote_jobs(app)
            site = ApiSite(app)
            changing = copy(site)
            changing.asgi = app.asgi(auth=lambda _scope: Identity(name="shop", permissions=allowed))
            worker = RemoteClient(changing, "plain", "resize")
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(worker.claim, 2, 30)
                assert eventually(lambda: app.manager().remote_workers.waiting == 1)
                allowed = replace(allowed, types=frozenset({"plain"}))
                self.submit(site, "resize")
                job_id = self.submit(site)
                assert [job["id"] for job in waiting.result(PATIENCE)] == [job_id]

    def test_the_server_has_a_longest_lease_also_for_workers_that_enrolled_before(self, site: ApiSite) -> None:
        old = [RemoteClient(site, "plain", lease=300) for _ in range(2)]
        assert {each.enrolled["lease"] for each in old} == {300.0}
        assert RemoteClient(site, "plain", lease=3600).enrolled["lease"] == 300.0
        site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(longest_lease=60))
        new = RemoteClient(site, "plain", lease=3600)
        assert (new.enrolled["lease"], new.enrolled["heartbeat_every"]) == (60.0, 20.0)
        assert old[0].post("claim", {"wait": 0}).json["heartbeat_every"] == 20.0
        assert old[1].beat()["heartbeat_every"] == 20.0
        terms = {each.number: each.info.remote for each in site.app.manager().engine.workers()}
        assert {terms[each.number].lease for each in [*old, new]} == {60_000_000}  # type: ignore[union-attr]

    # -- directions

    def test_an_operator_asks_a_worker_to_be_quiet_and_to_terminate(self, site: ApiSite) -> None:
        worker = RemoteClient(site, "plain")
        self.submit(site)
        path = f"/workers/{worker.number}/direct"
        assert site.post(path, {"direction": "quiet"}).status == 200
        told = worker.post("claim", {"wait": 30}).json
        assert told == {"jobs": [], "direction": "quiet", "heartbeat_every": 15.0}
        assert worker.beat()["direction"] == "quiet"
        assert site.post(path, {"direction": "terminate"}).status == 200
        assert worker.beat()["direction"] == "terminate"
        entries = site.get("/audit").json["entries"]
        actions = [entry["action"] for entry in entries]
        assert actions[:2] == ["worker.terminate", "worker.quiet"]
        assert site.post("/workers/999999/direct", {"direction": "quiet"}).problem == "worker-not-found"

    # -- removals

    def test_an_operator_removes_a_worker_of_another_token(self, site: ApiSite) -> None:
        job_id = self.submit(site)
        worker = RemoteClient(site, "plain", token=site.token("work"))
        job = worker.claim_one()
        for stranger in (site.token("work"), site.token("read"), site.token("operate", types=["resize"])):
            assert worker.leave(stranger).problem in ("worker-not-found", "not-allowed")
        assert worker.leave(site.token("operate")).json == {"number": worker.number, "released": [job_id]}
        assert worker.settle(job, "completed").problem == "worker-not-found"
        again = RemoteClient(site, "plain").claim_one()
        assert (again["id"], again["attempt"], site.app.get(job_id).interruptions) == (job_id, 1, 1)
        entry = site.get("/audit").json["entries"][0]
        assert (entry["actor"], entry["action"], entry["target"]) == (
            site.last_name,
            "worker.remove",
            str(worker.number),
        )
        assert worker.leave(site.token("operate")).problem == "worker-not-found"

    def test_a_living_worker_of_the_application_is_not_removed(self, site: ApiSite) -> None:
        with site.app.running():
            (listed,) = site.app.workers()
            answer = site.post(f"/workers/{listed.number}", method="DELETE")
            assert (answer.status, answer.problem) == (409, "worker-alive")
            assert "stop the process" in answer.json["detail"]

    def test_the_jobs_of_a_worker_run_elsewhere_when_its_token_is_revoked(self, site: ApiSite) -> None:
        job_ids = [self.submit(site), self.submit(site)]
        worker = RemoteClient(site, "plain", token=site.token("work"), lease=300)
        name = site.last_name
        jobs = {job["id"]: job for job in worker.claim_all(2)}
        site.app.cancel(job_ids[1])
        other = RemoteClient(site, "plain", token=site.token("work"))
        site.app.tokens.revoke(name)
        again = other.claim_one()
        assert (again["id"], again["attempt"]) == (job_ids[0], 1)
        assert str(site.app.get(job_ids[1]).status) == "CANCELED"
        assert worker.settle(jobs[job_ids[0]], "completed").problem == "token-invalid"
        (entry,) = [each for each in site.app.audit() if each.action == "worker.remove"]
        assert (entry.actor, entry.target) == ("mainspring", str(worker.number))
        (attempt,) = site.app.get(job_ids[0]).history
        assert attempt.error.endswith("was removed because its token was revoked")

    # -- what others see

    def test_a_remote_worker_is_listed_and_explains_its_jobs(self, site: ApiSite) -> None:
        job_id = self.submit(site, "plain")
        assert "no remote worker" in site.app.explain(job_id)
        worker = RemoteClient(site, "plain")
        (listed,) = site.get("/workers").json["workers"]
        assert (listed["number"], listed["name"], listed["types"]) == (worker.number, "tester", ["plain"])
        assert (listed["state"], listed["is_remote"]) == ("alive", True)
        assert "no remote worker" not in site.app.explain(job_id)
        worker.claim_one()
        assert "on worker tester" in site.app.explain(job_id)

    def test_events_and_activity_are_those_of_any_worker(self, site: ApiSite) -> None:
        events = site.app.events(timeout=PATIENCE)
        worker = RemoteClient(site, "plain")
        job_id = self.submit(site)
        worker.settle(worker.claim_one(), "completed")
        told: list[str] = []
        for event in events:
            told.append(str(event.kind))
            if event.kind == "completed":
                break
        assert told == ["submitted", "started", "completed"]
        (row,) = [row for row in site.app.activity() if row.type == "plain"]
        assert row.attempts == {"completed": 1}
        assert site.app.get(job_id).starts == 1

    def test_a_python_worker_leaves_remote_jobs_alone(self, site: ApiSite) -> None:
        remote = self.submit(site, "resize")
        with site.app.running():
            local = self.submit(site, "local.note")
            site.app.handle(local).wait(timeout=30)
            assert str(site.app.get(remote).status) == "PENDING"
            (listed,) = site.app.workers()
            assert listed.types == ("local.note",)

    # -- rights

    def test_a_worker_belongs_to_its_token(self, site: ApiSite) -> None:
        self.submit(site)
        owner, stranger = site.token("work"), site.token("work")
        worker = RemoteClient(site, "plain", token=owner)
        job = worker.claim_one()
        body = {"jobs": [{**key_of(job), "outcome": "completed"}]}
        for what, sent in (("claim", {"wait": 0}), ("heartbeat", {}), ("settle", body)):
            assert worker.post(what, sent, token=stranger).problem == "worker-not-found"
        assert (
            site.post(f"/workers/{worker.number}", method="DELETE", token=stranger).problem == "worker-not-found"
        )
        assert worker.settle(job, "completed").status == 200

    def test_the_types_and_queues_of_a_token_are_respected(self, site: ApiSite) -> None:
        self.submit(site, "resize")
        mine = self.submit(site, "plain", queue="small")
        self.submit(site, "plain", queue="large")
        token = site.token("work", types=["plain"], queues=["small"])
        refused = site.post("/workers", {"name": "w", "types": ["resize"]}, token=token)
        assert (refused.status, refused.problem) == (403, "not-allowed")
        refused = site.post("/workers", {"name": "w", "queues": ["large"]}, token=token)
        assert (refused.status, refused.problem) == (403, "not-allowed")
        worker = RemoteClient(site, token=token)
        assert (worker.enrolled["types"], worker.enrolled["queues"]) == (["plain"], ["small"])
        assert worker.claim_one()["id"] == mine
        assert worker.claim(5) == []
        for scope in ("read", "submit", "operate"):
            answer = site.post("/workers", {"name": "w"}, token=site.token(scope))
            assert answer.problem == "not-allowed"

    def test_wrong_requests_are_refused_with_the_reason(self, site: ApiSite) -> None:
        worker = RemoteClient(site, "plain")
        wrong = site.post("/workers", {"name": "w", "types": ["plian"]})
        assert wrong.problem == "invalid-value"
        assert "plain" in wrong.json["detail"]
        local = site.post("/workers", {"name": "w", "types": ["local.note"]})
        assert "app.remote_job" in local.json["detail"]
        item = {"id": "a", "fencing_token": 1, "outcome": "failed"}
        assert worker.post("settle", {"jobs": [item, item]}).problem == "invalid-value"
        assert (
            worker.post("settle", {"jobs": [{**item, "retry": False, "retry_after": 1}]}).problem
            == "invalid-value"
        )
        assert worker.post("settle", {"jobs": [{**item, "outcome": "snoozed"}]}).problem == "invalid-value"
        assert worker.post("settle", {"jobs": [item]}).problem == "lease-lost"
        assert worker.post("claim", {"wait": 31}).problem == "invalid-body"
        assert site.post("/workers/x/claim").problem == "worker-not-found"
