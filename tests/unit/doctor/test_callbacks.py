"""What the doctor says about the callback policy of an application."""

from __future__ import annotations

from mainspring import CallbackPolicy
from mainspring.doctor.callbacks import check_callbacks
from mainspring.doctor.findings import Severity
from tests.unit.doctor.finding_assertions import assert_finding, findings_of, is_all_ok


def test_an_application_without_a_policy_calls_nothing() -> None:
    assert is_all_ok(check_callbacks(None))
    assert is_all_ok(check_callbacks(CallbackPolicy()))


def test_the_allow_list_is_named() -> None:
    (finding,) = findings_of(check_callbacks(CallbackPolicy(allow=["https://hooks.example.com/orders/*"])))
    assert finding.what == "callbacks may call https://hooks.example.com/orders/*"


def test_entries_without_tls_are_a_warning() -> None:
    policy = CallbackPolicy(allow=["http://hooks.example.com/*", "https://a.example.com/*"], allow_http=True)
    assert_finding(check_callbacks(policy), Severity.WARNING, "without TLS: http://hooks.example.com/*")


def test_private_networks_are_mentioned() -> None:
    policy = CallbackPolicy(allow=["https://hooks.example.com/*"], allow_private=True)
    assert_finding(check_callbacks(policy), Severity.INFO, "private networks")
