"""Which URLs callbacks may call: a table of hostile ones, and what the entries of an allow-list match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import CallbackPolicy, CallbackRefused
from mainspring.callbacks.allow_list import parse_pattern, parse_url, show_url

HOSTILE = [
    # schemes
    "file:///etc/passwd",
    "ftp://hooks.example.com/orders/1",
    "gopher://hooks.example.com/orders/1",
    "javascript://hooks.example.com/orders/%0aalert(1)",
    "data:text/plain,hello",
    "unix:///var/run/docker.sock",
    "ws://hooks.example.com/orders/1",
    "http://hooks.example.com/orders/1",
    "HTTP://hooks.example.com/orders/1",
    "//hooks.example.com/orders/1",
    "hooks.example.com/orders/1",
    "/orders/1",
    "https:/hooks.example.com/orders/1",
    "https:hooks.example.com/orders/1",
    "https:///orders/1",
    "https://",
    "",
    " https://hooks.example.com/orders/1",
    "https://hooks.example.com/orders/1 ",
    "https://hooks.example.com/orders/1\n",
    "https://hooks.example.com/orders/1\r\nHost: evil.example",
    "https://hooks.example.com\t/orders/1",
    "https://hooks.example.com/orders/1\x00",
    # other hosts that look alike
    "https://evil.example/orders/1",
    "https://hooks.example.com.evil.example/orders/1",
    "https://evilhooks.example.com/orders/1",
    "https://example.com/orders/1",
    "https://sub.hooks.example.com/orders/1",
    "https://hooks.example.com./orders/1",
    "https://hooks..example.com/orders/1",
    "https://.hooks.example.com/orders/1",
    "https://hooks.example.co/orders/1",
    "https://hооks.example.com/orders/1",  # noqa: RUF001 - Cyrillic letters
    "https://hooks。example。com/orders/1",
    "https://hooks.example.com%2eevil.example/orders/1",
    "https://hooks%2eexample%2ecom/orders/1",
    "https://-hooks.example.com/orders/1",
    "https://" + "a" * 64 + ".example.com/orders/1",
    "https://" + "a." * 127 + "example.com/orders/1",
    "https://*.example.com/orders/1",
    # credentials, and confusion about where the host ends
    "https://hooks.example.com@evil.example/orders/1",
    "https://user:secret@hooks.example.com/orders/1",
    "https://user@hooks.example.com/orders/1",
    "https://@hooks.example.com/orders/1",
    "https://hooks.example.com:443@evil.example/orders/1",
    "https://evil.example#@hooks.example.com/orders/1",
    "https://evil.example?@hooks.example.com/orders/1",
    "https://evil.example\\@hooks.example.com/orders/1",
    "https://hooks.example.com\\@evil.example/orders/1",
    "https://hooks.example.com\\.evil.example/orders/1",
    "https://evil.example;hooks.example.com/orders/1",
    "https://evil.example,hooks.example.com/orders/1",
    "https://evil.example&hooks.example.com/orders/1",
    # ports
    "https://hooks.example.com:22/orders/1",
    "https://hooks.example.com:80/orders/1",
    "https://hooks.example.com:/orders/1",
    "https://hooks.example.com:0/orders/1",
    "https://hooks.example.com:0443/orders/1",
    "https://hooks.example.com:65979/orders/1",
    "https://hooks.example.com:+443/orders/1",
    "https://hooks.example.com:443:22/orders/1",
    "https://hooks.example.com:４４３/orders/1",  # noqa: RUF001 - full-width digits
    # address literals, in all forms that resolvers accept
    "https://127.0.0.1/orders/1",
    "https://127.1/orders/1",
    "https://2130706433/orders/1",
    "https://0x7f000001/orders/1",
    "https://0x7f.0.0.1/orders/1",
    "https://0177.0.0.1/orders/1",
    "https://017700000001/orders/1",
    "https://0/orders/1",
    "https://127.0.0.1./orders/1",
    "https://1.1.1.1/orders/1",
    "https://169.254.169.254/latest/meta-data/",
    "https://[::1]/orders/1",
    "https://[::ffff:127.0.0.1]/orders/1",
    "https://[fe80::1%25eth0]/orders/1",
    "https://[::]/orders/1",
    "https://[hooks.example.com]/orders/1",
    "https://hooks.example.com.0x7f/orders/1",
    "https://１２７.0.0.1/orders/1",  # noqa: RUF001 - full-width digits
    "https://localhost/orders/1",
    # paths
    "https://hooks.example.com/",
    "https://hooks.example.com",
    "https://hooks.example.com/orders",
    "https://hooks.example.com/ordersx/1",
    "https://hooks.example.com/Orders/1",
    "https://hooks.example.com/orders/../admin",
    "https://hooks.example.com/orders/..",
    "https://hooks.example.com/orders/./1",
    "https://hooks.example.com/orders/%2e%2e/admin",
    "https://hooks.example.com/orders/%2E./admin",
    "https://hooks.example.com/orders/.%2e/admin",
    "https://hooks.example.com/orders/%252e%252e/admin",
    "https://hooks.example.com/orders/..%2fadmin",
    "https://hooks.example.com/orders%2f1",
    "https://hooks.example.com/orders/1%2F..%2F..%2Fadmin",
    "https://hooks.example.com/orders/..%5cadmin",
    "https://hooks.example.com/orders/1%5C",
    "https://hooks.example.com/orders/..%252fadmin",
    "https://hooks.example.com/orders/..;/admin",
    "https://hooks.example.com/orders/..;x=1/admin",
    "https://hooks.example.com/orders/%2e%2e;/admin",
    "https://hooks.example.com/orders/%3b/../admin",
    "https://hooks.example.com/orders/%2e%2e%3b/admin",
    "https://hooks.example.com/orders/1%00",
    "https://hooks.example.com/orders/1%0d%0aX-Evil:%201",
    "https://hooks.example.com/orders/1%7f",
    "https://hooks.example.com/orders/1%",
    "https://hooks.example.com/orders/1%zz",
    'https://hooks.example.com/orders/"1"',
    "https://hooks.example.com/orders/<1>",
    "https://hooks.example.com/orders/{1}",
    "https://hooks.example.com/orders/ü",
    "https://hooks.example.com/../orders/1",
    # paths that only some receivers read differently
    "https://hooks.example.com/orders/%25252e%25252e/admin",
    "https://hooks.example.com/orders/%2525252e%2525252e/admin",
    "https://hooks.example.com/orders/%252525252525252541",
    "https://hooks.example.com/orders/..%25252fadmin",
    "https://hooks.example.com/orders/..%25255cadmin",
    "https://hooks.example.com/orders/%25250d%25250aX-Evil:1",
    "https://hooks.example.com/orders/%c0%ae%c0%ae/admin",
    "https://hooks.example.com/orders/%25c0%25ae%25c0%25ae/admin",
    "https://hooks.example.com/orders/%e0%80%ae%e0%80%ae/admin",
    "https://hooks.example.com/orders/%f0%80%80%ae%f0%80%80%ae/admin",
    "https://hooks.example.com/orders/..%c0%afadmin",
    "https://hooks.example.com/orders/..%c1%9cadmin",
    "https://hooks.example.com/orders/%c0%2e%c0%2e/admin",
    "https://hooks.example.com/orders/%fc%80%80%80%80%ae./admin",
    "https://hooks.example.com/orders/%ef%bc%8e%ef%bc%8e/admin",
    "https://hooks.example.com/orders/%e2%80%a5/admin",
    "https://hooks.example.com/orders/..%ef%bc%8fadmin",
    "https://hooks.example.com/orders/..%ef%bc%bcadmin",
    "https://hooks.example.com/orders/%ef%bc%852e%ef%bc%852e/admin",
    "https://hooks.example.com/orders/..%20/admin",
    "https://hooks.example.com/orders/..%20%20/admin",
    "https://hooks.example.com/orders/..%20",
    "https://hooks.example.com/orders/%20../admin",
    "https://hooks.example.com/orders/..%20./admin",
    "https://hooks.example.com/orders/.%20./admin",
    "https://hooks.example.com/orders/.%20/admin",
    "https://hooks.example.com/orders/..%2520/admin",
    "https://hooks.example.com/orders/..%c2%a0/admin",
    "https://hooks.example.com/orders/..%20;x=1/admin",
    "https://hooks.example.com/orders/..%3fx/admin",
    "https://hooks.example.com/orders/..%23x/admin",
    "https://hooks.example.com/orders/..%09/admin",
    "https://hooks.example.com/orders/1%c2%85",
    "https://hooks.example.com/orders/1%0A",
    # queries and fragments
    "https://hooks.example.com/orders/1#fragment",
    "https://hooks.example.com/orders/1#",
    "https://hooks.example.com/orders/1?a=b c",
    "https://hooks.example.com/orders/1?a=%",
    "https://hooks.example.com/orders/1?a=\x07",
    "https://hooks.example.com/orders/1?a=%00",
    "https://hooks.example.com/orders/1?a=%0d%0aX-Evil:%201",
    "https://hooks.example.com/orders/1?a=%7F",
    "https://hooks.example.com/orders/1?a=%C2%9b",
    "https://hooks.example.com/orders/" + "1" * 3_000,
]
POLICY = CallbackPolicy(allow=["https://hooks.example.com/orders/*"])


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_url_is_refused(url: str) -> None:
    with pytest.raises(CallbackRefused):
        POLICY.check(url)


def test_the_table_has_more_than_a_hundred_urls() -> None:
    assert len(set(HOSTILE)) > 140


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/orders/1",
        "https://hooks.example.com:443/orders/1",
        "HTTPS://Hooks.Example.COM/orders/1",
        "https://hooks.example.com/orders/",
        "https://hooks.example.com/orders/a/b/c",
        "https://hooks.example.com/orders/%20x%c3%bc",
        "https://hooks.example.com/orders/1?next=https://evil.example/../x&y=%2f",
        "https://hooks.example.com/orders/...",
        "https://hooks.example.com/orders/a.%20b/..x/x../%20",
        "https://hooks.example.com/orders/100%25",
        "https://hooks.example.com/orders/100%2525",
        "https://hooks.example.com/orders/1?when=%25&name=%E9&nested=https%253A%252F%252Fa.example%252F",
        "https://hooks.example.com/orders/.well-known",
        "https://hooks.example.com/orders//1",
    ],
)
def test_a_listed_url_is_allowed(url: str) -> None:
    assert POLICY.check(url).host == "hooks.example.com"


@pytest.mark.parametrize("value", [None, 42, b"https://hooks.example.com/orders/1", ["https://x"]])
def test_only_a_string_is_a_url(value: object) -> None:
    with pytest.raises(CallbackRefused, match="it is not a string; pass a URL"):
        POLICY.check(value)


@pytest.mark.parametrize(
    ("entry", "url", "is_allowed"),
    [
        ("https://*.example.com/*", "https://a.example.com/x", True),
        ("https://*.example.com/*", "https://a.b.example.com/", True),
        ("https://*.example.com/*", "https://example.com/x", False),
        ("https://*.example.com/*", "https://evil-example.com/x", False),
        ("https://*.example.com/*", "https://xexample.com/x", False),
        ("https://*.example.com/*", "https://a.example.com.evil.example/x", False),
        ("https://example.com/hook", "https://example.com/hook", True),
        ("https://example.com/hook", "https://example.com/hook?x=1", True),
        ("https://example.com/hook", "https://example.com/hook/", False),
        ("https://example.com/hook", "https://example.com/hooks", False),
        ("https://example.com/", "https://example.com", True),
        ("https://example.com:8443/*", "https://example.com:8443/x", True),
        ("https://example.com:8443/*", "https://example.com/x", False),
        ("https://example.com/*", "https://example.com:8443/x", False),
    ],
)
def test_what_an_entry_matches(entry: str, url: str, is_allowed: bool) -> None:  # noqa: FBT001
    assert parse_pattern(entry).matches(parse_url(url)) == is_allowed


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("https://example.com", "has no path"),
        ("example.com/*", "has no path"),
        ("https://*/x", "in the wrong place"),
        ("https://*.com/*", "whole top-level domain"),
        ("https://a.*.example.com/*", "in the wrong place"),
        ("https://example.com/a*", "in the wrong place"),
        ("https://example.com/*/x", "in the wrong place"),
        ("https://example.com/x?y", "in the wrong place"),
        ("https://10.0.0.1/*", "its host is an address"),
        ("https://user@example.com/*", "credentials"),
        ("https://example.com/../*", "dot segment"),
        ("ftp://example.com/*", "not an absolute http"),
    ],
)
def test_a_wrong_entry_is_explained(entry: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        CallbackPolicy(allow=[entry])


def test_an_entry_without_tls_needs_a_word() -> None:
    with pytest.raises(ValueError, match="allow_http=True"):
        CallbackPolicy(allow=["http://example.com/*"])
    policy = CallbackPolicy(allow=["http://example.com/*"], allow_http=True)
    assert policy.check("http://example.com/x").port == 80


def test_a_list_is_needed() -> None:
    with pytest.raises(TypeError, match="must be a list"):
        CallbackPolicy(allow="https://example.com/*")


def test_nothing_is_allowed_by_default_and_the_error_names_the_remedy() -> None:
    with pytest.raises(CallbackRefused) as caught:
        CallbackPolicy().check("https://hooks.example.com/orders?token=secret")
    assert "CallbackPolicy(allow=['https://hooks.example.com/orders'])" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_messages_show_neither_credentials_nor_queries() -> None:
    assert show_url("https://user:pass@example.com/x?token=1#y") == "https://…@example.com/x"


@given(st.text(max_size=60))
def test_no_text_gets_around_the_host(text: str) -> None:
    for url in (f"https://{text}", f"https://hooks.example.com{text}", f"https://hooks.example.com/orders/{text}"):
        try:
            allowed = POLICY.check(url)
        except CallbackRefused:
            continue
        assert (allowed.host, allowed.port, allowed.scheme) == ("hooks.example.com", 443, "https")
        assert allowed.path.startswith("/orders/")
        assert "/../" not in allowed.path
