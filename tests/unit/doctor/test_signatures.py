"""The check of signatures: which keys stored jobs need, and which jobs will not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring import KeyRing, Mainspring
from mainspring.doctor.findings import Severity
from mainspring.doctor.signatures import SignatureFacts, check_signatures, read_signatures
from mainspring.jobs.records import NewJob
from tests.unit.doctor.finding_assertions import findings_of

RING = KeyRing({"new": KeyRing.generate(), "old": KeyRing.generate()}, sign_with="new")


def texts(facts: SignatureFacts | None) -> dict[str, Severity]:
    return {finding.what: finding.severity for finding in findings_of(check_signatures(facts))}


def test_an_application_without_keys_and_signed_jobs_is_in_order() -> None:
    assert texts(SignatureFacts(pending={None: 3})) == {"jobs are not signed": Severity.OK}


def test_jobs_and_schedules_are_counted_by_key() -> None:
    facts = SignatureFacts(pending={"new": 1_200, "old": 1}, letters={"old": 2}, schedules={"new": 4}, ring=RING)
    (what,) = texts(facts)
    assert what == "pending: 1,200 by 'new', 1 by 'old'; dead letters: 2 by 'old'; schedules: 4 by 'new'"


def test_a_key_that_nothing_needs_can_go() -> None:
    facts = SignatureFacts(pending={"new": 1}, letters={"old": 2}, ring=RING)
    assert "no pending job and no schedule is signed with old, apart from 2 dead letters" in texts(facts)
    uncounted = SignatureFacts(pending={"new": 1}, ring=RING, is_complete=False)
    assert not any("no pending job" in what for what in texts(uncounted))


def test_jobs_that_will_not_run_are_reported() -> None:
    found = texts(SignatureFacts(pending={"lost": 5, None: 2}, schedules={"lost": 1, None: 1}, ring=RING))
    warnings = [what for what, severity in found.items() if severity is Severity.WARNING]
    assert (
        "5 pending jobs or schedules are signed with a key that this application does not have: lost" in warnings
    )
    assert "2 pending jobs and 1 schedule have no signature" in warnings


def test_unsigned_jobs_are_no_problem_while_they_are_accepted() -> None:
    ring = KeyRing({"new": KeyRing.generate()}, sign_with="new", accept_unsigned=True)
    assert Severity.WARNING not in texts(SignatureFacts(pending={None: 2}, ring=ring)).values()


def test_what_was_not_counted_is_said() -> None:
    assert list(texts(None)) == ["the keys of signed jobs were not counted"]


@pytest.mark.parametrize("number", [3, 1_100])
def test_the_store_is_read_page_by_page(tmp_path: Path, number: int) -> None:
    with Mainspring(f"sqlite:///{tmp_path}/jobs.db", signing=RING, durability="normal") as app:

        @app.job(name="pay")
        def pay(order: int) -> None: ...

        pay.submit_many([(order,) for order in range(number)])
        app.schedules.put("daily", pay, "0 6 * * *", arguments={"order": 1})
        engine = app.manager().engine
        engine.submit([NewJob("unsigned", "pay", "default", 1, engine.now(), b"{}", "json")])
        facts = read_signatures(engine, engine.schedules(), RING)
    assert (facts.pending, facts.schedules, facts.is_complete) == ({"new": number, None: 1}, {"new": 1}, True)
