"""The conformance suite: tests that every engine must pass. Subclass it in a test module, and pytest runs it.

    import pytest
    from mainspring.testing import EngineConformance

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def make_engine(self, tmp_path):
            return lambda clock: MyEngine(tmp_path / "jobs", clock=clock)

For each test the suite creates an engine with a `ManualClock`, and opens and closes it. Engines may differ only in
the capabilities that they declare (`Capability`). A class whose engine lacks capabilities that tests need names
them:

    class TestMyServer(EngineConformance):
        lacks = frozenset({Capability.VIRTUAL_TIME, Capability.EXACT_ORDER, Capability.FORESIGHT})

Tests that need one of them (`needs`) are then not part of the class. A test of the suite compares `lacks` with the
declared capabilities. An engine without `VIRTUAL_TIME` ignores the clock. Tests then let real time pass, at most
two seconds each, and wait for the engine to deliver due jobs and to wake its workers.
"""
# ruff: noqa: E402 - pytest can explain failed assertions only if the parts are registered before they are imported

from __future__ import annotations

import sys

import pytest

PARTS = (
    "bench",
    "schedule_driver",
    "submits",
    "unique_keys",
    "claims",
    "sequences",
    "limits",
    "rates",
    "queues",
    "quotas",
    "outcomes",
    "transitions",
    "follow_ups",
    "commands",
    "schedules",
    "firings",
    "rescue",
    "single_attempts",
    "dead_letter_handlers",
    "waiting_jobs",
    "queries",
    "statistics",
    "searching",
    "explain",
    "blocked_jobs",
    "workers",
    "events",
    "started_events",
    "pruning",
    "activity",
    "tokens",
    "requests",
    "audit",
    "redactions",
    "callback_pauses",
    "signatures",
    "remote_workers",
)
MODULES = [f"{__name__}.{part}" for part in PARTS]
pytest.register_assert_rewrite(*(name for name in MODULES if name not in sys.modules))

from mainspring.testing.conformance.activity import ActivityTests
from mainspring.testing.conformance.audit import AuditTests
from mainspring.testing.conformance.blocked_jobs import BlockedJobTests
from mainspring.testing.conformance.callback_pauses import CallbackPauseTests
from mainspring.testing.conformance.claims import ClaimTests
from mainspring.testing.conformance.commands import CommandTests
from mainspring.testing.conformance.dead_letter_handlers import DeadLetterHandlerTests
from mainspring.testing.conformance.events import EventTests
from mainspring.testing.conformance.explain import ExplainTests
from mainspring.testing.conformance.firings import FiringTests
from mainspring.testing.conformance.follow_ups import FollowUpTests
from mainspring.testing.conformance.limits import LimitTests
from mainspring.testing.conformance.outcomes import OutcomeTests
from mainspring.testing.conformance.pruning import PruningTests
from mainspring.testing.conformance.queries import QueryTests
from mainspring.testing.conformance.queues import QueueTests
from mainspring.testing.conformance.quotas import QuotaTests
from mainspring.testing.conformance.rates import RateTests
from mainspring.testing.conformance.redactions import RedactionTests
from mainspring.testing.conformance.remote_workers import RemoteWorkerTests
from mainspring.testing.conformance.requests import RequestTests
from mainspring.testing.conformance.rescue import RescueTests
from mainspring.testing.conformance.schedules import ScheduleTests
from mainspring.testing.conformance.searching import SearchTests
from mainspring.testing.conformance.sequences import SequenceTests
from mainspring.testing.conformance.signatures import SignatureTests
from mainspring.testing.conformance.single_attempts import SingleAttemptTests
from mainspring.testing.conformance.started_events import StartedEventTests
from mainspring.testing.conformance.statistics import StatisticsTests
from mainspring.testing.conformance.submits import SubmitTests
from mainspring.testing.conformance.tokens import TokenTests
from mainspring.testing.conformance.transitions import TransitionTests
from mainspring.testing.conformance.unique_keys import UniqueKeyTests
from mainspring.testing.conformance.waiting_jobs import WaitingJobTests
from mainspring.testing.conformance.workers import WorkerTests


class EngineConformance(
    SubmitTests,
    UniqueKeyTests,
    ClaimTests,
    SequenceTests,
    LimitTests,
    RateTests,
    QueueTests,
    QuotaTests,
    OutcomeTests,
    TransitionTests,
    FollowUpTests,
    CommandTests,
    ScheduleTests,
    FiringTests,
    RescueTests,
    SingleAttemptTests,
    DeadLetterHandlerTests,
    WaitingJobTests,
    QueryTests,
    StatisticsTests,
    SearchTests,
    ExplainTests,
    BlockedJobTests,
    WorkerTests,
    EventTests,
    StartedEventTests,
    PruningTests,
    ActivityTests,
    TokenTests,
    RequestTests,
    AuditTests,
    RedactionTests,
    CallbackPauseTests,
    SignatureTests,
    RemoteWorkerTests,
):
    """The tests that every engine must pass. A subclass overrides the fixture `make_engine`."""
