"""Which Host and Origin headers a server accepts."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.web.host_names import HostRule, is_same_origin, normal_name, rule_for, split_host

LOOPBACK = rule_for(["127.0.0.1"], ["127.0.0.1"])
ANYWHERE = rule_for(["0.0.0.0"], ["0.0.0.0", "jobs.example.com"])


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8400", "127.0.0.1", "localhost:8400", "LOCALHOST", "localhost.:1", "[::1]:9000", "[::1]"]
)
def test_a_server_on_loopback_is_known_by_its_names_at_any_forwarded_port(host: str) -> None:
    assert LOOPBACK.accepts(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8400",
        "evil.example#127.0.0.1",
        "user@127.0.0.1",
        "127.0.0.1:8400:8400",
        "127.0.0.1/",
        "127.0.0.1 evil.example",
        "10.0.0.5",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "",
        ":",
        "[",
        "localhost\0",
        "lokalhost",
    ],
)
def test_dns_rebinding_and_malformed_hosts_are_refused(host: str) -> None:
    assert not LOOPBACK.accepts(host)


def test_a_server_on_all_addresses_accepts_addresses_but_no_foreign_names() -> None:
    for known in ("10.0.0.5:8400", "[2001:db8::1]", "localhost", "jobs.example.com", socket.gethostname()):
        assert ANYWHERE.accepts(known), known
    for unknown in ("evil.example", "example.com", "a.jobs.example.com"):
        assert not ANYWHERE.accepts(unknown)


def test_a_server_at_several_addresses_is_known_by_all_of_them() -> None:
    rule = rule_for(["127.0.0.1", "10.0.0.5", "fe80::1%eth0"], ["jobs.example.com"])
    for known in ("localhost", "10.0.0.5", "jobs.example.com", "[fe80::1]", socket.gethostname()):
        assert rule.accepts(known), known
    assert not rule.accepts("10.0.0.6")
    for addresses in (["0.0.0.0", "127.0.0.1"], ["127.0.0.1", "0.0.0.0"]):
        assert rule_for(addresses, []).accepts("10.0.0.6")


def test_a_server_on_loopback_is_not_known_by_the_name_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "machine")
    assert not rule_for(["127.0.0.1"], []).accepts("machine")
    assert rule_for(["10.0.0.5"], []).accepts("machine")


@pytest.mark.parametrize("name", ["", "a name"])
def test_a_machine_whose_name_is_no_host_name_is_known_by_its_address(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    rule = rule_for(["10.0.0.5"], [])
    assert rule.accepts("10.0.0.5")
    assert not rule.accepts("localhost")


def test_a_rule_with_names_accepts_no_addresses() -> None:
    assert not HostRule(["jobs.example.com"]).accepts("10.0.0.5")


def test_a_server_on_one_address_accepts_that_address_only() -> None:
    rule = rule_for(["10.0.0.5"], [])
    assert rule.accepts("10.0.0.5:8400")
    assert not any(map(rule.accepts, ["10.0.0.6", "127.0.0.1", "localhost"]))


def test_a_host_name_of_the_user_is_checked() -> None:
    assert normal_name("Jobs.Example.com.") == "jobs.example.com"
    assert normal_name("::1") == normal_name("[::1]") == "::1"
    for wrong in ("https://jobs.example.com", "jobs.example.com:80", "a:80", "[a:80]", "a b", ""):
        with pytest.raises(ValueError, match=r"is no host name; write jobs\.example\.com"):
            normal_name(wrong)


@given(st.text())
def test_any_text_is_split_or_refused(text: str) -> None:
    parts = split_host(text)
    assert parts is None or parts[0] == parts[0].lower()
    HostRule(["localhost"]).accepts(text)
    is_same_origin(text, "localhost")
    is_same_origin(f"http://{text}", "localhost")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8400", "127.0.0.1:8400"),
        ("http://localhost", "localhost:80"),
        ("https://jobs.example.com", "jobs.example.com"),
        ("https://jobs.example.com:443", "JOBS.example.com"),
        ("http://[::1]:8400", "[::1]:8400"),
        ("HTTP://LOCALHOST:8400", "localhost:8400"),
        ("http://jobs.example.com.:80", "jobs.example.com"),
    ],
)
def test_a_page_of_the_server_itself_fits(origin: str, host: str) -> None:
    assert is_same_origin(origin, host)


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://127.0.0.1:8401",
        "http://127.0.0.1",
        "http://localhost:8400",
        "http://127.0.0.1:8400.evil.example",
        "http://127.0.0.1:8400@evil.example",
        "http://user@127.0.0.1:8400",
        "http://127.0.0.1:8400/path",
        "http://127.0.0.1:99999",
        "file://127.0.0.1:8400",
        "127.0.0.1:8400",
        "http://[127.0.0.1:8400",
    ],
)
def test_any_other_page_is_foreign(origin: str) -> None:
    assert not is_same_origin(origin, "127.0.0.1:8400")
