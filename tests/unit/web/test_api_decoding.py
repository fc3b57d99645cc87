"""Hostile requests: malformed, deep, huge and ambiguous ones are clear problems, and never an internal error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.jobs.records import to_place
from mainspring.web.api.decoding import MAX_DEPTH, decode_json, decode_query
from mainspring.web.api.jobs import JobListQuery
from mainspring.web.api.submitting import NewJobBody
from mainspring.web.problems import Refused
from tests.api_site import JSON, NDJSON, ApiSite
from tests.asgi_client import request


def nested(levels: int) -> bytes:
    return b'{"type":"shop.anything","arguments":{"value":' + b"[" * levels + b"]" * levels + b"}}"


BODIES: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 422, "invalid-body"),
    "no JSON": (b"type=x", 400, "invalid-json"),
    "cut off": (b'{"type": "shop.anything"', 400, "invalid-json"),
    "two values": (b'{"type": "shop.anything"} {}', 400, "invalid-json"),
    "a byte order mark": (b'\xef\xbb\xbf{"type": "shop.anything"}', 400, "invalid-json"),
    "not UTF-8": (b'{"type": "\xff"}', 400, "invalid-json"),
    "a surrogate in UTF-8": (b'{"type": "\xed\xa0\x80"}', 400, "invalid-json"),
    "a lone surrogate": (b'{"type": "\\ud800"}', 400, "invalid-json"),
    "NaN": (b'{"type": "shop.anything", "delay": NaN}', 400, "invalid-json"),
    "infinity": (b'{"type": "shop.anything", "delay": 1e999}', 422, "invalid-body"),
    "a NUL byte": (b'{"type": "a\0b"}', 400, "invalid-json"),
    "a NUL character": (b'{"type": "shop.anything", "id": "a\\u0000b"}', 422, "invalid-value"),
    "an array": (b"[]", 422, "invalid-body"),
    "null": (b"null", 422, "invalid-body"),
    "a wrong type": (b'{"type": 1}', 422, "invalid-body"),
    "an unknown field": (b'{"type": "shop.anything", "argments": {}}', 422, "invalid-body"),
    "an unknown inner field": (b'{"type": "shop.anything", "unique": {"kye": "x"}}', 422, "invalid-body"),
    "a negative delay": (b'{"type": "shop.anything", "delay": -1}', 422, "invalid-body"),
    "a huge delay": (b'{"type": "shop.anything", "delay": 1e300}', 422, "invalid-value"),
    "too late": (b'{"type": "shop.anything", "delay": 1e12}', 422, "invalid-value"),
    "a huge integer as delay": (b'{"type": "shop.anything", "delay": 1' + b"0" * 4000 + b"}", 422, "invalid-body"),
    "a huge integer": (b'{"type": "shop.anything", "arguments": {"value": ' + b"9" * 5000 + b"}}", 422, ""),
    "no time zone": (b'{"type": "shop.anything", "at": "2026-01-01T00:00:00"}', 422, "invalid-body"),
    "no time": (b'{"type": "shop.anything", "at": "tomorrow"}', 422, "invalid-body"),
    "both times": (b'{"type": "shop.anything", "delay": 1, "at": "2026-01-01T00:00:00Z"}', 422, "invalid-value"),
    "an early time": (b'{"type": "shop.anything", "at": "0001-01-01T00:00:00+14:00"}', 422, "invalid-value"),
    "a long id": (b'{"type": "shop.anything", "id": "' + b"x" * 201 + b'"}', 422, "invalid-value"),
    "no queue": (b'{"type": "shop.anything", "queue": ""}', 422, "invalid-value"),
    "an unknown parameter": (b'{"type": "shop.anything", "unique": {"by": ["x"]}}', 422, "invalid-value"),
    "no attempts": (b'{"type": "shop.anything", "retry": {"max_attempts": 0}}', 422, "invalid-body"),
    "no timeout": (b'{"type": "shop.anything", "timeout": 0}', 422, "invalid-value"),
    "no expiry": (b'{"type": "shop.anything", "expires": 0}', 422, "invalid-value"),
    "an unknown priority": (b'{"type": "shop.anything", "priority": "HIGH"}', 422, "invalid-body"),
    "too deep": (nested(MAX_DEPTH - 1), 422, "too-deep"),
    "far too deep": (nested(100_000), 422, "too-deep"),
    "open brackets": (b'{"type": "x", "arguments": ' + b"[" * 1_000_000, 422, "too-deep"),
    "open braces": (b'{"a":' * 100_000, 422, ""),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_wrong_body_is_a_clear_problem(site: ApiSite, name: str) -> None:
    raw, status, problem = BODIES[name]
    answer = site.post("/jobs", raw=raw)
    assert (answer.status, answer.problem) == (status, problem or answer.problem)
    assert len(answer.json["detail"]) < 2_000
    assert site.ids() == []


def test_the_deepest_data_that_are_allowed_are_stored_and_shown(site: ApiSite) -> None:
    answer = site.post("/jobs", raw=nested(MAX_DEPTH - 2))
    assert answer.status == 201
    assert site.get(f"/jobs/{answer.json['id']}").status == 200
    assert json.dumps(site.get("/jobs").json).count("[") >= MAX_DEPTH - 2


def test_brackets_inside_of_strings_are_no_levels(site: ApiSite) -> None:
    text = '["\\' * 1_000
    body = {"type": "shop.anything", "arguments": {"value": [text, {"a": text}]}}
    assert site.post("/jobs", body).status == 201


@pytest.mark.parametrize(
    ("raw", "place", "hint"),
    [
        (b'{"type": "shop.anything", "argments": {}}', "argments", "did you mean 'arguments'?"),
        (b'{"type": "shop.anything", "unique": {"windw": 1}}', "at 'unique'", "did you mean 'window'?"),
        (b'{"type": "shop.anything", "unique": {"x": 1}}', "at 'unique'", "by, key, on_conflict, states, window"),
        (b'{"type": "shop.anything", "retry": {"factor": "2"}}', "at 'retry.factor'", "got str"),
        (b"{}", "'type'", "is missing"),
    ],
)
def test_a_wrong_field_is_named(site: ApiSite, raw: bytes, place: str, hint: str) -> None:
    detail = site.post("/jobs", raw=raw).json["detail"]
    assert place in detail
    assert hint in detail


QUERIES = {
    "limit=0": "limit",
    "limit=501": "limit",
    "limit=x": "limit",
    "limit=" + "9" * 5_000: "limit",
    "limit=1&limit=1": "several times",
    "argument.a=1&argument.a=2": "several times",
    "limt=1": "did you mean 'limit'?",
    "argument=1": "this endpoint has no parameter 'argument'",
    "argument.=1": "this endpoint has no parameter 'argument.'",
    "argments.x=1": "this endpoint has no parameter",
    "status=failed": "status",
    "status=null": "'status' cannot be 'null'",
    "newest_first=perhaps": "newest_first",
    "queue=%00": "NUL",
    "%00=1": "NUL",
    "text=%ff": "UTF-8",
    "text=%ED%A0%80": "UTF-8",
    "since=2026-01-01T00:00:00+08:00": "%2B",
    "since=2026-01-01T00:00:00": "no time zone",
    "since=99999999999d": "since",
    "since=999999999d": "",
    "until=yesterday": "no time",
    "&".join(f"argument.a{n}=1" for n in range(101)): "more than 100 parameters",
    "msp_0123456789_abc=1": "'msp_0123456789_***'",
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_wrong_query_is_a_clear_problem(site: ApiSite, query: str) -> None:
    answer = site.get(f"/jobs?{query}")
    assert answer.status == 422
    assert answer.problem in ("invalid-query", "invalid-value")
    assert QUERIES[query] in answer.json["detail"]
    assert len(answer.json["detail"]) < 1_000


@pytest.mark.parametrize("path", ["/jobs/%ff", "/jobs/%ED%A0%80"])
def test_a_path_that_is_not_utf_8_is_a_clear_problem(site: ApiSite, path: str) -> None:
    assert site.get(path).status in (400, 404)


@pytest.mark.parametrize("path", ["/jobs/", "/jobs//", "/jobs//cancel", "/jobs/x/y", "/job", "//jobs", "/.."])
def test_a_path_that_does_not_exist_is_a_clear_problem(site: ApiSite, path: str) -> None:
    assert site.get(path).problem == "not-found"


def test_the_methods_of_a_path_are_named(site: ApiSite) -> None:
    answer = site.post("/jobs/x", method="PUT")
    assert (answer.status, answer.problem, answer.headers["allow"]) == (405, "method", "GET, HEAD")
    assert site.post("/jobs", method="DELETE").headers["allow"] == "GET, HEAD, POST"
    assert request(site.asgi, "/api/v1/jobs/batch", method="HEAD", token=site.admin).status in (404, 405)
    assert request(site.asgi, "/api/v1/jobs", method="HEAD", token=site.admin).status == 200


def test_only_batches_may_have_lines(site: ApiSite) -> None:
    answer = site.post("/jobs", {"type": "shop.anything"}, content_type=NDJSON)
    assert (answer.status, answer.problem) == (415, "content-type")
    upper = site.post(
        "/jobs", {"type": "shop.anything"}, content_type=(JSON[0], "Application/JSON; charset=utf-8")
    )
    assert upper.status == 201


def test_an_endpoint_without_fields_refuses_a_body(site: ApiSite) -> None:
    job_id = site.submit()
    assert site.post(f"/jobs/{job_id}/cancel", {"force": True}).problem == "invalid-body"
    assert site.get(f"/jobs/{job_id}").json["status"] == "PENDING"


# -- fuzz


def status_of(call: Callable[[], object]) -> int:
    """Return the status of the problem that a call raises; 200 if it raises none."""
    try:
        call()
    except Refused as refused:
        return refused.problem.status
    return 200


class Sample(msgspec.Struct, forbid_unknown_fields=True):
    number: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    word: str | None = None
    flag: bool = False
    pair: dict[str, str] = {}


@given(st.binary(max_size=200))
@example(b'{"type": "\\')
@example(b'["' + b'\\"' * 200)
def test_any_bytes_are_decoded_or_refused_as_a_body(raw: bytes) -> None:
    assert status_of(lambda: decode_json(raw, NewJobBody)) in (200, 400, 422)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from(
    ["type", "arguments", "delay", "at", "queue", "priority", "id", "unique", "retry", "expires"]
)


@given(st.dictionaries(FIELDS, JSON_VALUES, max_size=6))
def test_any_values_of_the_fields_are_decoded_or_refused(body: dict[str, Any]) -> None:
    assert status_of(lambda: decode_json(json.dumps(body).encode(), NewJobBody)) in (200, 400, 422)


@given(st.binary(max_size=100) | st.text(max_size=60).map(lambda text: quote(text, safe="&=.%+").encode()))
def test_any_bytes_are_decoded_or_refused_as_a_query(query: bytes) -> None:
    assert status_of(lambda: decode_query(query, Sample)) in (200, 422)
    assert status_of(lambda: decode_query(query, JobListQuery)) in (200, 422)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(st.integers(1, 9), TEXTS, st.booleans(), st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=3))
def test_a_query_is_decoded_to_what_was_encoded(number: int, word: str, flag: bool, pair: dict[str, str]) -> None:  # noqa: FBT001
    values = {"number": number, "word": word, "flag": str(flag).lower()}
    query = urlencode({**values, **{f"pair.{name}": value for name, value in pair.items()}})
    assert decode_query(query.encode(), Sample) == Sample(number, word, flag, pair)


@given(st.text(max_size=30) | st.integers().map(str))
def test_any_text_is_a_place_or_refused(text: str) -> None:
    is_place = re.fullmatch("[0-9]{1,19}", text, re.ASCII) is not None and int(text) < 2**63
    if is_place:
        assert to_place(text) == int(text)
    else:
        with pytest.raises(ValueError, match="`next`"):
            to_place(text)


@given(st.integers(0, 2 * MAX_DEPTH), st.text(st.sampled_from('[]{}"\\ax'), max_size=30))
def test_the_depth_is_that_of_the_data_whatever_its_strings(levels: int, text: str) -> None:
    value: Any = text
    for level in range(levels):
        value = [text, value] if level % 2 else {text: value}
    raw = json.dumps([value, *[[]] * MAX_DEPTH]).encode()
    if levels < MAX_DEPTH:
        assert decode_json(raw, list[Any])[0] == value
    else:
        with pytest.raises(Refused, match=f"more than {MAX_DEPTH} levels"):
            decode_json(raw, list[Any])
