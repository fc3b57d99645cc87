"""Conformance tests of engines: the redacted parameters of job types."""

from __future__ import annotations

from mainspring.jobs.commands import DropRedaction, PauseQueue, PutRedaction
from mainspring.jobs.records import Query
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench


class RedactionTests(EngineSuite):
    """Tests of the engine's `redactions`, and of `PutRedaction` and `DropRedaction`."""

    def test_redacted_parameters_are_stored_by_job_type(self, bench: Bench, other: Bench) -> None:
        assert bench.engine.redactions() == {}
        assert bench.arrange(PutRedaction("pay", ("card",)))
        assert other.arrange(PutRedaction("mail", ("token", "body")))
        expected = {"mail": ("body", "token"), "pay": ("card",)}
        assert bench.engine.redactions() == other.engine.redactions() == expected
        assert list(bench.engine.redactions()) == ["mail", "pay"]

    def test_parameters_are_added_to_those_that_are_stored(self, bench: Bench, other: Bench) -> None:
        assert bench.arrange(PutRedaction("pay", ("card",)))
        assert other.arrange(PutRedaction("pay", ("cvc", "card")))
        assert not bench.arrange(PutRedaction("pay", ("cvc",)))
        assert bench.engine.redactions() == other.engine.redactions() == {"pay": ("card", "cvc")}

    def test_a_job_type_can_be_shown_again(self, bench: Bench, other: Bench) -> None:
        for name in ("pay", "mail"):
            assert bench.arrange(PutRedaction(name, ("card",)))
        assert other.arrange(DropRedaction("pay"))
        assert not bench.arrange(DropRedaction("pay"))
        assert bench.engine.redactions() == {"mail": ("card",)}

    def test_another_process_that_reads_a_job_knows_its_parameters(self, bench: Bench, other: Bench) -> None:
        assert other.engine.redactions() == {}
        for number in range(20):
            type_ = f"pay{number}"
            assert bench.arrange(PutRedaction(type_, ("card",)))
            bench.engine.submit([bench.job(f"job{number}", type=type_)])
            assert other.engine.find(Query(ids=(f"job{number}",))).records
            assert other.engine.redactions()[type_] == ("card",)

    def test_other_settings_leave_them_alone(self, bench: Bench) -> None:
        assert bench.arrange(PutRedaction("pay", ("card",)))
        assert bench.arrange(PauseQueue("default", is_paused=True))
        assert bench.engine.redactions() == {"pay": ("card",)}
        assert bench.engine.paused_queues() == ("default",)
