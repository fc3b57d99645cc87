"""Redacted parameters: what is masked in snapshots, explanations and texts, and by what no job can be found."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from mainspring import JobInfo, JobStatus
from mainspring.jobs.arguments import Arguments
from mainspring.jobs.explanation import Explanation, Reason
from mainspring.jobs.info import to_info
from mainspring.jobs.masking import REDACTED
from mainspring.jobs.records import Attempt, JobRecord, NewJob, Progress
from mainspring.jobs.redaction import Redactions, mask_of_payloads, mask_of_plain, redact
from mainspring.jobs.serializers import BUILT_IN, JsonSerializer
from mainspring.jobs.transitions import submitted

SECRET = "canary-4111"
NAMES = {"pay": ("card", "pin")}


def make_record(type_: str = "pay", payload: bytes = b"", **changes: Any) -> JobRecord:
    """Make a job whose texts all have the secret."""
    payload = payload or json.dumps({"card": SECRET, "order": 7}).encode()
    record = submitted(JobRecord, NewJob("j1", type_, "default", 1, 1, payload, "json"), now=1)
    texts: dict[str, Any] = {
        "error": f"no {SECRET}",
        "history": (Attempt(1, 1, 2, "failure", f"first {SECRET}"), Attempt(2, 3, 4, "failure", "other")),
        "sequence": f"of {SECRET}",
        "unique_key": f"key {SECRET}",
        "limits": (f"limit {SECRET}", "limit"),
        "headers": {"trace": f"id {SECRET}", "user": "ann"},
        "progress": Progress(1, 2, f"at {SECRET}", 5),
    }
    return msgspec.structs.replace(record, **{**texts, **changes})


def test_every_text_of_a_snapshot_is_masked_and_all_else_stays() -> None:
    info = to_info(make_record())
    shown = Redactions(NAMES).show_info(info)
    assert info.progress is not None
    assert shown == replace(
        info,
        arguments={"card": REDACTED, "order": 7},
        error=f"no {REDACTED}",
        history=(
            replace(info.history[0], error=f"first {REDACTED}"),
            replace(info.history[1], error="other"),
        ),
        sequence=f"of {REDACTED}",
        unique_key=f"key {REDACTED}",
        limits=(f"limit {REDACTED}", "limit"),
        headers={"trace": f"id {REDACTED}", "user": "ann"},
        progress=replace(info.progress, note=f"at {REDACTED}"),
    )


def test_the_warning_of_a_completed_job_is_masked() -> None:
    info = to_info(make_record(status=JobStatus.COMPLETED, error=f"odd {SECRET}"))
    assert info.warning == f"odd {SECRET}"
    assert Redactions(NAMES).show_info(info).warning == f"odd {REDACTED}"


def test_texts_that_are_missing_stay_missing() -> None:
    nothing: dict[str, Any] = {"error": None, "sequence": None, "unique_key": None, "progress": None}
    shown = Redactions(NAMES).show_info(to_info(make_record(**nothing)))
    assert (shown.error, shown.warning, shown.sequence, shown.unique_key, shown.progress) == (None,) * 5
    silent = to_info(make_record(progress=Progress(1, 2, None, 5)))
    assert Redactions(NAMES).show_info(silent).progress == silent.progress


def test_a_type_without_redacted_parameters_is_shown_as_it_is() -> None:
    info: JobInfo = to_info(make_record("bill"))
    redactions = Redactions(NAMES)
    assert redactions.show_info(info) is info
    assert redactions.names("bill") == ()
    assert redactions.show("bill", {"card": SECRET}) == {"card": SECRET}
    assert redactions.mask_of(make_record("bill"), BUILT_IN) is None


def test_names_of_all_sources_are_redacted_each_once_and_in_order() -> None:
    redactions = Redactions(NAMES, {"pay": ("pin", "iban"), "bill": ("vat",)})
    assert redactions.names("pay") == ("card", "pin", "iban")
    assert redactions.names("bill") == ("vat",)
    assert redactions.show("pay", {"iban": 1, "n": 2}) == {"iban": REDACTED, "n": 2}


def test_an_explanation_is_masked_by_all_jobs_that_it_is_about() -> None:
    explanation = Explanation(
        job_id="j1",
        status=JobStatus.PENDING,
        reason=Reason.BEHIND,
        text=f"{SECRET} waits for canary-2",
        remedy=f"Cancel {SECRET}.",
        blocked_by=("j2",),
    )
    records = [make_record(), make_record("bill"), make_record(payload=b'{"card": "canary-2"}')]
    redactions = Redactions(NAMES)
    assert redactions.show_explanation(explanation, records, BUILT_IN) == replace(
        explanation, text=f"{REDACTED} waits for {REDACTED}", remedy=f"Cancel {REDACTED}."
    )
    assert redactions.show_explanation(explanation, [make_record("bill")], BUILT_IN) is explanation
    without = replace(explanation, remedy=None)
    assert redactions.show_explanation(without, records, BUILT_IN).remedy is None


def test_arguments_that_cannot_be_decoded_are_redacted_as_a_whole() -> None:
    assert redact(b"\x00secret", ["card"]) == REDACTED
    assert redact(b"\x00secret", []) == b"\x00secret"
    mask = Redactions(NAMES).mask_of(make_record(payload=b"{secret text"), BUILT_IN)
    assert mask is not None
    assert mask("got {secret text, order") == f"got {REDACTED}, order"
    assert mask_of_plain("secret", ["card"])("a secret") == f"a {REDACTED}"


def test_only_redacted_values_are_masked() -> None:
    mask = mask_of_plain({"card": SECRET, "order": "order-7"}, ["card", "pin"])
    assert mask(f"{SECRET} of order-7") == f"{REDACTED} of order-7"
    assert redact({"card": SECRET, "order": 7}, iter(["card"])) == {"card": REDACTED, "order": 7}


def pay(card: str, amount: Decimal = Decimal(0), order: str = "") -> None: ...


def test_the_mask_of_a_handler_has_the_stored_values_and_the_objects_that_it_got() -> None:
    arguments = Arguments("pay", pay, JsonSerializer())
    payloads = [
        (b'{"card": "canary-1", "amount": "1234.5", "order": "order-7"}', "json"),
        (b'{"card": "canary-2"}', "json"),
        (b"{undecodable", "json"),
    ]
    mask = mask_of_payloads(arguments, iter(["card", "amount"]), payloads)
    assert mask("canary-1 canary-2 1234.5 1,234.5 {undecodable order-7") == " ".join([REDACTED] * 5) + " order-7"
    assert mask(payloads[1][0].decode()) == f'{{"card": "{REDACTED}"}}'


def problem_of(redactions: Redactions, *arguments: Any) -> str:
    with pytest.raises(ValueError, match="cannot be found") as refused:
        redactions.require_searchable(*arguments)
    return str(refused.value)


def test_a_search_by_a_redacted_parameter_is_refused_with_a_remedy() -> None:
    redactions = Redactions({"bill": ("vat",), **NAMES, "auth": ("pin",)})
    start = (
        "jobs cannot be found by 'pin', because the job type 'pay' redacts this parameter (redact=); "
        "filter by other parameters"
    )
    assert problem_of(redactions, ["order", "pin"], "pay") == start
    other = start.replace("'pay'", "'auth'") + ", or give the type of the jobs, if you mean another one"
    assert problem_of(redactions, ["order", "pin"], None) == other
    redactions.require_searchable(["order"], "pay")
    redactions.require_searchable(["pin"], "bill")
    redactions.require_searchable([], None)


def test_a_refused_search_names_no_type_that_the_caller_may_not_read() -> None:
    redactions = Redactions({**NAMES, "auth": ("pin",)})
    assert "because the job type 'pay' redacts" in problem_of(redactions, ["pin"], None, ["bill", "pay"])
    redactions.require_searchable(["pin"], None, ["bill"])
    redactions.require_searchable(["pin"], "pay", iter(["auth"]))
    redactions.require_searchable(["pin"], None, [])
