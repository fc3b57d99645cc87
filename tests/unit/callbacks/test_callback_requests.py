"""The request of a callback: its headers and its body."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import CallbackSecret, InvalidArguments
from mainspring.callbacks.allow_list import parse_url
from mainspring.callbacks.requests import (
    CallbackRequest,
    SendingJob,
    check_body,
    check_headers,
    check_method,
    make_request,
)

URL = parse_url("https://hooks.example.com/orders")
DROPPED = [
    "Host",
    "host",
    "HOST",
    "Connection",
    "Keep-Alive",
    "Proxy-Authorization",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "HTTP2-Settings",
    "Content-Length",
    "Expect",
    "Accept-Encoding",
    "webhook-id",
    "Webhook-Signature",
    "webhook-timestamp",
    "webhook-anything",
    "Mainspring-Job",
    "mainspring-attempt",
    "webhook_id",  # servers that follow CGI cannot tell it from webhook-id
    "Mainspring_Job",
    "Transfer_Encoding",
]


def make(*headers: dict[str, str], body: Any = None, secret: CallbackSecret | None = None) -> CallbackRequest:
    job = SendingJob("job-1", "paid", 2, "2026-11-17T12:00:00Z")
    return make_request(URL, "POST", headers, body, job=job, agent="Mainspring", secret=secret, timestamp=7)


@pytest.mark.parametrize("name", DROPPED)
def test_a_job_cannot_set_this_header(name: str) -> None:
    request = make({name: "evil"}, secret=CallbackSecret(bytes(32)))
    assert "evil" not in request.headers.values()


def test_the_request_names_the_job_and_the_attempt() -> None:
    headers = make().headers
    assert headers["Mainspring-Job"] == "job-1"
    assert headers["Mainspring-Type"] == "paid"
    assert headers["Mainspring-Attempt"] == "2"
    assert headers["Mainspring-Due"] == "2026-11-17T12:00:00Z"


def test_the_last_header_wins_whatever_its_case() -> None:
    headers = make({"X-Key": "declared", "content-type": "a/b"}, {"x-key": "job"}, body={"a": 1}).headers
    assert {name.lower(): value for name, value in headers.items()}["x-key"] == "job"
    assert [name for name in headers if name.lower() == "x-key"] == ["x-key"]
    assert [value for name, value in headers.items() if name.lower() == "content-type"] == ["a/b"]


def test_a_whole_request() -> None:
    request = make({"X-Own": "1"}, body={"a": 1}, secret=CallbackSecret(bytes(32)))
    signed = CallbackSecret(bytes(32)).headers("job-1", 7, b'{"a":1}')
    assert request == CallbackRequest(
        URL,
        "POST",
        {
            "User-Agent": "Mainspring",
            "Accept": "*/*",
            "Content-Type": "application/json",
            "X-Own": "1",
            "Accept-Encoding": "gzip, deflate",
            "Mainspring-Job": "job-1",
            "Mainspring-Type": "paid",
            "Mainspring-Attempt": "2",
            "Mainspring-Due": "2026-11-17T12:00:00Z",
            **signed,
        },
        b'{"a":1}',
    )


def test_a_job_can_choose_its_agent_and_what_it_accepts() -> None:
    headers = make({"user-agent": "shop", "ACCEPT": "a/b"}).headers
    assert [value for name, value in headers.items() if name.lower() in ("user-agent", "accept")] == [
        "shop",
        "a/b",
    ]


def test_a_type_with_other_letters_is_written_in_ascii() -> None:
    job = SendingJob("job-1", "zahlung.über", 1, "")
    request = make_request(URL, "POST", (), None, job=job, agent="", secret=None, timestamp=0)
    assert request.headers["Mainspring-Type"] == r"zahlung.\xfcber"


@pytest.mark.parametrize(
    ("body", "content", "kind"),
    [
        (None, b"", None),
        ({"a": [1, None]}, b'{"a":[1,null]}', "application/json"),
        ([], b"[]", "application/json"),
        (0, b"0", "application/json"),
        (False, b"false", "application/json"),
        ("<a>ü</a>", "<a>ü</a>".encode(), "text/plain; charset=utf-8"),
        ("", b"", "text/plain; charset=utf-8"),
        (b"\x00\x01", b"\x00\x01", "application/octet-stream"),
    ],
)
def test_how_a_body_is_sent(body: Any, content: bytes, kind: str | None) -> None:
    request = make(body=body)
    assert (request.body, request.headers.get("Content-Type")) == (content, kind)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Evil": "a\r\nHost: evil"},
        {"X-Evil": "a\nb"},
        {"X-Evil": "a\x00b"},
        {"X-Evil": "ü"},
        {"X-Evil\r\nHost": "evil"},
        {"X Evil": "a"},
        {"X-Evil:": "a"},
        {"": "a"},
        {"Xé": "a"},
        {"X-Long": "a" * 10_000},
        {f"X-{number}": "a" for number in range(60)},
        {"X-Number": 42},
    ],
)
def test_a_hostile_header_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidArguments) as caught:
        check_headers("paid", headers)
    assert caught.value.parameter == "headers"
    assert "evil" not in caught.value.problem.lower().replace("x-evil", "").replace("x evil", "").replace(
        "host", ""
    )


def test_headers_within_the_limits_are_accepted() -> None:
    check_headers("paid", None)
    check_headers("paid", {f"X-{number}": "a\tb ~!" for number in range(50)})
    check_headers("paid", {"X-Long": "a" * 8_192})


def test_errors_name_the_job_type_the_parameter_and_the_remedy() -> None:
    texts = []
    for check in (
        lambda: check_headers("paid", {"X Y" + "z" * 200: "a"}),
        lambda: check_headers("paid", {"X-A": "b"} | {f"X-{number}": "a" for number in range(50)}),
        lambda: check_headers("paid", {"X-Evil": "a\n"}),
        lambda: check_body("paid", "HEAD", 1),
        lambda: check_method("paid", "TRACE"),
    ):
        with pytest.raises(InvalidArguments) as caught:
            check()
        texts.append(str(caught.value))
    remedy = "pass at most 50 headers as a dict of strings, such as {'X-Tenant': 'acme'}"
    allowed = "printable ASCII, or more than 8,192 of them"
    assert texts == [
        f"paid, parameter 'headers': {'X Y' + 'z' * 97!r} is not the name of a header; {remedy}",
        f"paid, parameter 'headers': there are 51 headers, the limit is 50; {remedy}",
        f"paid, parameter 'headers': the value of 'X-Evil' has characters other than {allowed}; {remedy}",
        "paid, parameter 'body': a HEAD request has no body; use POST, or pass the data in the query of the URL",
        "paid, parameter 'method': it is 'TRACE'; use POST, PUT, PATCH, DELETE, GET, HEAD",
    ]


def test_only_methods_of_http_are_sent() -> None:
    assert check_method("paid", "put") == "PUT"
    for method in ("CONNECT", "TRACE", "OPTIONS", "GET / HTTP/1.1\r\n", "", None):
        with pytest.raises(InvalidArguments, match="use POST"):
            check_method("paid", method)


def test_a_get_has_no_body() -> None:
    check_body("paid", "GET", None)
    with pytest.raises(InvalidArguments, match="no body"):
        check_body("paid", "GET", {})
