"""Checks the callback policy of an application: what may be called, without TLS, and in private networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainspring.doctor.findings import Finding, info, ok, some, warning

if TYPE_CHECKING:
    from mainspring.callbacks.policy import CallbackPolicy


def check_callbacks(policy: CallbackPolicy | None) -> Iterator[Finding]:
    """Report the allow-list; warn of entries without TLS, and say that private networks are allowed."""
    if policy is None or not policy.allow:
        yield ok("callbacks may call nothing: the allow-list is empty")
        return
    without_tls = sorted({pattern for pattern in policy.allow if pattern.lower().startswith("http:")})
    if without_tls:
        yield warning(
            f"callbacks may be sent without TLS: {some(without_tls)}",
            "All machines on the way can read these requests and change the answers.",
            "Give the receivers a certificate, and list them in CallbackPolicy(allow=[...]) with https.",
        )
    if policy.allow_private:
        yield info(
            "callbacks may reach private networks and this machine (allow_private=True)",
            "Everyone who may submit callbacks can reach the servers there that the allow-list names.",
        )
    if not without_tls:
        yield ok(f"callbacks may call {some(policy.allow)}")
