"""Decides which IP addresses a callback may connect to.

Invariants
- Only global unicast addresses are allowed. `ipaddress.is_private` does not suffice: it does not know shared
  addresses (100.64.0.0/10), NAT64, 6to4, and metadata services at addresses that look public.
- An address that contains an IPv4 address (mapped, NAT64, 6to4) is judged by that address.
- `allow_private` adds networks of an organisation and the machine itself. Metadata services stay forbidden, also
  at private IPv6 addresses: those of the clouds that are known, and all that contain the IPv4 address of one.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_METADATA = {
    ip_address(text): f"a metadata service ({owner})"
    for text, owner in (
        ("169.254.169.254", "most clouds"),
        ("169.254.170.2", "AWS containers"),
        ("169.254.170.23", "AWS EKS"),
        ("100.100.100.200", "Alibaba Cloud"),
        ("168.63.129.16", "Azure"),
        ("192.0.0.192", "Oracle Cloud"),
        ("fd20:ce::254", "Google Cloud"),
        ("fd00:42::42", "Scaleway"),
        ("fd00:100::100:200", "Alibaba Cloud"),
    )
}
_METADATA_4 = {int(address): owner for address, owner in _METADATA.items() if isinstance(address, IPv4Address)}
_PRIVATE_4 = {
    IPv4Network(text): name
    for text, name in (
        ("10.0.0.0/8", "private"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("100.64.0.0/10", "shared (carrier-grade NAT)"),
        ("127.0.0.0/8", "of this machine (loopback)"),
    )
}
_FORBIDDEN_4 = {
    IPv4Network(text): name
    for text, name in (
        ("0.0.0.0/8", "of this host"),
        ("169.254.0.0/16", "link-local"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "for documentation"),
        ("192.31.196.0/24", "reserved (AS112)"),
        ("192.52.193.0/24", "reserved (AMT)"),
        ("192.88.99.0/24", "reserved (6to4 relays)"),
        ("192.175.48.0/24", "reserved (AS112)"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
}
_PRIVATE_6 = {
    IPv6Network("::1/128"): "of this machine (loopback)",
    IPv6Network("fc00::/7"): "private (unique local)",
}
_FORBIDDEN_6 = {
    IPv6Network(text): name
    for text, name in (
        ("fd00:ec2::/32", "a metadata service (AWS)"),
        ("2001::/32", "a Teredo tunnel"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "for documentation"),
        ("3fff::/20", "for documentation"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
}
_GLOBAL_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")
_ISATAP = 0x5EFE


@lru_cache(maxsize=4_096)
def find_objection(text: str, *, allow_private: bool = False) -> str | None:
    """Return why a callback must not connect to an IP address, such as `private`; None if it may connect.

    With `allow_private`, it may connect to private, shared and loopback addresses, except for those of metadata
    services. Text that is not an IP address is refused, too.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return "not an address"
    if isinstance(address, IPv4Address):
        return _object_to_4(address, allow_private=allow_private)
    if address.scope_id is not None:
        return "bound to an interface"
    embedded = _embedded(address)
    if embedded is not None:
        objection = _object_to_4(embedded, allow_private=allow_private)
        return None if objection is None else f"{objection}, because it contains the address {embedded}"
    return _object_to_6(address, allow_private=allow_private)


def _object_to_4(address: IPv4Address, *, allow_private: bool) -> str | None:
    if address in _METADATA:
        return _METADATA[address]
    private = next((name for network, name in _PRIVATE_4.items() if address in network), None)
    if private is not None:
        return None if allow_private else private
    forbidden = next((name for network, name in _FORBIDDEN_4.items() if address in network), None)
    return "not a global address" if forbidden is None and not address.is_global else forbidden


def _object_to_6(address: IPv6Address, *, allow_private: bool) -> str | None:
    known = _METADATA.get(address) or _contained_metadata(address)
    if known is not None:
        return known
    forbidden = next((name for network, name in _FORBIDDEN_6.items() if address in network), None)
    if forbidden is not None:
        return forbidden
    private = next((name for network, name in _PRIVATE_6.items() if address in network), None)
    if private is not None:
        return None if allow_private else private
    if address not in _GLOBAL_6 or not address.is_global:
        return "not a global address"
    if (int(address) >> 32) & 0xFFFF == _ISATAP and (int(address) >> 48) & 0xFCFF == 0:
        return "an ISATAP tunnel"
    return None


def _contained_metadata(address: IPv6Address) -> str | None:
    """Return the metadata service whose IPv4 address two neighboring groups of an IPv6 address are; None if none.

    Clouds choose such addresses for it (`fd00:c1::a9fe:a9fe`), and a NAT64 gateway with a prefix of its own
    translates them.
    """
    for shift in range(0, 112, 16):
        found = _METADATA_4.get((int(address) >> shift) & 0xFFFFFFFF)
        if found is not None:
            return found
    return None


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address inside of a mapped, NAT64 or 6to4 IPv6 address; None for other addresses."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _6TO4:
        return address.sixtofour
    return None
