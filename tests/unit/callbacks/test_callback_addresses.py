"""Which addresses callbacks may connect to."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.callbacks.addresses import find_objection

_NAT64 = IPv6Network("64:ff9b::/96")
NEVER = [
    "0.0.0.0",
    "0.1.2.3",
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::7f00:1",
    "::169.254.169.254",
    "::ffff:169.254.169.254",
    "::ffff:0.0.0.0",
    "::ffff:0:127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "2002:a9fe:a9fe::",
    "2002:a83f:8110::1",
    "2001::1",
    "2001:0:53aa:64c:0:ffff:5601:fefe",
    "2001:2::1",
    "2001:10::1",
    "2001:30::1",
    "2001:db8::1",
    "3fff::1",
    "100::1",
    "5f00::1",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd00:ec2:1:2::1",
    "fd20:ce::254",
    "fd00:42::42",
    "fd00:100::100:200",
    "fd00:a9fe:a9fe::1",
    "fd00:c1::a9fe:a9fe",
    "fd00::a9fe:aa02",
    "fd12:3456::6464:64c8",
    "fd64:ff9b::a83f:8110",
    "2600:1234::a9fe:a9fe",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "4000::1",
    "2a00:1450::5efe:10.0.0.1",
    "2a00:1450::200:5efe:10.0.0.1",
    "no address",
    "",
]
PRIVATE = [
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "::1",
    "fc00::1",
    "fd12:3456:789a::1",
    "fd00:42::43",
    "fd00:100::100:201",
    "fd00:ec3::1",
    "fd00:c1::1",
    "::ffff:10.0.0.1",
    "::ffff:7f00:1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::7f00:1",
    "2002:a00:1::1",
    "2002:7f00:1::",
    "2002:c0a8:101::",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.1",
    "168.63.129.15",
    "172.15.0.1",
    "172.32.0.1",
    "192.0.1.1",
    "2606:4700::1111",
    "2a00:1450:4001::200e",
    "64:ff9b::808:808",
    "2002:808:808::1",
    "::ffff:8.8.8.8",
]


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_always_refused(address: str) -> None:
    assert find_objection(address)
    assert find_objection(address, allow_private=True)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_need_a_word(address: str) -> None:
    assert find_objection(address)
    assert find_objection(address, allow_private=True) is None


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert find_objection(address) is None


@given(st.ip_addresses())
def test_no_address_is_allowed_that_python_calls_special(address: object) -> None:
    if find_objection(str(address)) is not None:
        return
    known = ip_address(str(address))
    if isinstance(known, IPv6Address) and (known.ipv4_mapped or known.sixtofour or known in _NAT64):
        return  # judged by the address inside
    assert known.is_global
    assert not any((known.is_multicast, known.is_reserved, known.is_link_local, known.is_loopback))
