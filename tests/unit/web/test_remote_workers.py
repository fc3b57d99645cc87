"""The API of remote workers, on SQLite."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from mainspring import KeyRing, Mainspring
from mainspring.security.http_limits import HttpLimits
from tests.api_site import ApiSite
from tests.blank_stores import make_blank_store
from tests.remote_worker_tests import RemoteClient, RemoteWorkerTests, add_remote_jobs
from tests.support import PATIENCE, eventually


class TestRemoteWorkersOnSqlite(RemoteWorkerTests):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{make_blank_store(tmp_path / 'jobs.db')}"

    def test_a_job_that_was_changed_while_it_ran_is_not_signed_anew(self, url: str) -> None:
        ring = KeyRing({"k": KeyRing.generate()}, sign_with="k")
        with Mainspring(url, signing=ring) as app:
            add_remote_jobs(app)
            site = ApiSite(app)
            job_id = self.submit(site, "resize")
            worker = RemoteClient(site, "resize")
            job = worker.claim_one()
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as store:
                store.execute("UPDATE jobs SET follow_up = replace(follow_up, 'local.note', 'plain')")
            settled = worker.settle(job, "completed", result={"command": "rm"}).json["jobs"][0]
            assert (settled["accepted"], settled["status"]) == (True, "FAILED")
            assert str(app.get(job_id).error).startswith("SignatureInvalid: ")
            assert app.counts()["PENDING"] == 0, "no follow-up job was made"

    def test_a_worker_has_only_so_many_jobs_that_it_has_not_settled(self, site: ApiSite) -> None:
        site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(claimed_jobs=3))
        worker, other = RemoteClient(site, "plain"), RemoteClient(site, "plain")
        for _ in range(6):
            self.submit(site)
        first = worker.claim(2)
        assert (len(first), len(worker.claim(100))) == (2, 1), "a claim gets fewer jobs than it asks for"
        answer = worker.post("claim", {"jobs": 1, "wait": 30})
        assert (answer.status, answer.problem) == (429, "too-many-claimed-jobs")
        assert "3 jobs" in answer.json["detail"]
        assert len(other.claim(2)) == 2, "each worker has its own limit"
        worker.settle(first[0], "completed")
        assert len(worker.claim(2)) == 1

    def test_claims_of_one_worker_at_the_same_time_share_its_room(self, site: ApiSite) -> None:
        site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(claimed_jobs=5))
        worker = RemoteClient(site, "plain")
        for _ in range(40):
            self.submit(site)
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: worker.post("claim", {"jobs": 4, "wait": 0}), range(16)))
        jobs = [job["id"] for answer in answers if answer.status == 200 for job in answer.json["jobs"]]
        assert len(jobs) == len(set(jobs)) <= 5
        assert {answer.status for answer in answers} <= {200, 429}
        assert not site.app.manager().remote_workers._claiming

    def test_only_so_many_claims_wait_at_once(self, site: ApiSite) -> None:
        site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(waiting_claims=1, caller_share=1))
        worker, other = RemoteClient(site, "plain"), RemoteClient(site, "plain")
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(worker.claim, wait=30)
            assert eventually(lambda: site.app.manager().remote_workers.waiting == 1)
            answer = other.post("claim", {"wait": 30})
            assert (answer.status, answer.problem) == (503, "too-many-claims")
            assert answer.headers["retry-after"] == "1"
            assert other.post("claim", {"wait": 0}).status == 200, "a claim that does not wait is served"
            job_id = self.submit(site)
            assert [job["id"] for job in first.result(PATIENCE)] == [job_id]
        assert site.app.manager().remote_workers.waiting == 0

    def test_a_worker_has_one_waiting_claim(self, site: ApiSite) -> None:
        worker = RemoteClient(site, "plain")
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(worker.claim, wait=30)
            assert eventually(lambda: site.app.manager().remote_workers.waiting == 1)
            answer = worker.post("claim", {"wait": 30})
            assert (answer.status, answer.problem) == (429, "claim-in-progress")
            assert worker.post("claim", {"wait": 30}, token=site.token("work")).problem == "worker-not-found"
            job_id = self.submit(site)
            assert [job["id"] for job in first.result(PATIENCE)] == [job_id]
        assert worker.post("claim", {"wait": 0}).status == 200

    def test_the_claims_of_one_token_leave_room_for_others(self, site: ApiSite) -> None:
        site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(waiting_claims=10))
        greedy = [RemoteClient(site, "plain") for _ in range(3)]
        other = RemoteClient(site, "plain", token=site.token("work"))
        waiting = site.app.manager().remote_workers
        with ThreadPoolExecutor(3) as threads:
            claims = [threads.submit(each.claim, wait=30) for each in greedy[:2]]
            assert eventually(lambda: waiting.waiting == 2)
            answer = greedy[2].post("claim", {"wait": 30})
            assert (answer.status, answer.problem) == (429, "too-many-own-claims")
            claims.append(threads.submit(other.claim, wait=30))
            assert eventually(lambda: waiting.waiting == 3)
            for _ in claims:
                self.submit(site)
            assert all(claim.result(PATIENCE) for claim in claims)

    def test_one_token_enrolls_only_so_many_workers(self, site: ApiSite) -> None:
        site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(caller_workers=3))
        workers = [RemoteClient(site, "plain") for _ in range(3)]
        refused = site.post("/workers", {"name": "w"})
        assert (refused.status, refused.problem) == (429, "too-many-workers")
        assert "3 remote workers" in refused.json["detail"]
        assert site.post("/workers", {"name": "w"}, token=site.token("work")).status == 201
        workers[0].leave()
        assert site.post("/workers", {"name": "w"}).status == 201

    def test_workers_that_enroll_at_the_same_time_are_counted(self, site: ApiSite) -> None:
        site.asgi = site.app.asgi(auth="tokens", limits=HttpLimits(caller_workers=3))
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: site.post("/workers", {"name": "w"}), range(24)))
        assert sum(answer.status == 201 for answer in answers) <= 3
        assert len(site.app.workers()) <= 3
