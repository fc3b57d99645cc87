"""Signatures of callbacks, as a receiver verifies them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from standardwebhooks import Webhook, WebhookVerificationError

from mainspring import CallbackPolicy, CallbackRefused, CallbackSecret, SystemClock
from mainspring.callbacks.allow_list import parse_url
from mainspring.callbacks.signatures import to_message_id

BODY = '{"order": 42, "name": "Zoë"}'.encode()
URL = parse_url("https://hooks.example.com/orders/1")


def now() -> int:
    return int(SystemClock().now().timestamp())


def test_the_reference_package_verifies_a_request() -> None:
    key = CallbackSecret.generate()
    headers = CallbackSecret(key).headers("job-1", now(), BODY)
    assert Webhook(key).verify(BODY, headers) == {"order": 42, "name": "Zoë"}


def test_a_changed_body_id_or_time_does_not_verify() -> None:
    key = CallbackSecret.generate()
    headers = CallbackSecret(key).headers("job-1", now(), BODY)
    changed = [
        (BODY + b" ", headers),
        (BODY, headers | {"webhook-id": "job-2"}),
        (BODY, headers | {"webhook-timestamp": str(now() + 7)}),
    ]
    for body, given in changed:
        with pytest.raises(WebhookVerificationError):
            Webhook(key).verify(body, given)


def test_during_a_rotation_both_keys_verify() -> None:
    old, new, other = (CallbackSecret.generate() for _ in range(3))
    policy = CallbackPolicy(secrets={"shop": [new, old]})
    headers = policy.secret("shop", URL).headers("job-1", now(), BODY)
    assert headers["webhook-signature"].count("v1,") == 2
    for key in (old, new):
        Webhook(key).verify(BODY, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(BODY, headers)


def test_ed25519_signs_with_v1a_beside_v1() -> None:
    key = Ed25519PrivateKey.generate()
    shared = CallbackSecret.generate()
    secret = CallbackSecret("whsk_" + base64.b64encode(key.private_bytes_raw()).decode(), shared)
    headers = secret.headers("job-1", 1_700_000_000, BODY)
    asymmetric, symmetric = headers["webhook-signature"].split(" ")
    version, _, signature = asymmetric.partition(",")
    assert (version, symmetric[:3]) == ("v1a", "v1,")
    signed = b"job-1.1700000000." + BODY
    key.public_key().verify(base64.b64decode(signature), signed)
    with pytest.raises(InvalidSignature):
        key.public_key().verify(base64.b64decode(signature), signed + b" ")


def test_the_package_accepts_a_request_with_both_kinds() -> None:
    shared = CallbackSecret.generate()
    seed = "whsk_" + base64.b64encode(bytes(range(32))).decode()
    headers = CallbackSecret(seed, shared).headers("job-1", now(), BODY)
    Webhook(shared).verify(BODY, headers)


def test_a_job_id_with_a_dot_has_none_in_the_message() -> None:
    assert to_message_id("order.42/ü") == "order%2E42%2F%C3%BC"
    assert to_message_id("01a1ebb5e9ca77938c523cf4448cd800") == "01a1ebb5e9ca77938c523cf4448cd800"


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("whsec_c2hvcnQ=", "the least is 24"),
        (b"short", "the least is 24"),
        ("whsec_***", "not base64"),
        ("Zm9vYmFy", "must begin with whsec_"),
        ("whpk_" + base64.b64encode(bytes(32)).decode(), "public"),
        ("whsk_" + base64.b64encode(bytes(31)).decode(), "31 bytes"),
        ([], "needs a key"),
    ],
)
def test_a_wrong_key_is_explained_and_not_shown(key: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        CallbackPolicy(secrets={"shop": key})
    assert "callback secret 'shop'" in str(caught.value)
    if isinstance(key, str):
        assert key.rpartition("_")[2] not in str(caught.value)


@pytest.mark.parametrize("given", [42, None, [42]])
def test_a_key_of_another_type_is_refused(given: object) -> None:
    with pytest.raises(TypeError, match="'shop'"):
        CallbackPolicy(secrets={"shop": given})  # type: ignore[dict-item]


def test_a_secret_can_be_bound_to_its_receiver() -> None:
    secret = CallbackSecret(CallbackSecret.generate(), urls=["https://hooks.example.com/orders/*"])
    policy = CallbackPolicy(secrets={"shop": secret})
    policy.secret("shop", URL)
    with pytest.raises(CallbackRefused, match="for other URLs"):
        policy.secret("shop", parse_url("https://other.example.com/orders/1"))


def test_an_unknown_secret_is_refused_with_a_question() -> None:
    policy = CallbackPolicy(secrets={"shop": CallbackSecret.generate()})
    with pytest.raises(CallbackRefused, match="did you mean 'shop'"):
        policy.secret("shopp", URL)


def test_no_repr_shows_a_key() -> None:
    key = CallbackSecret.generate()
    policy = CallbackPolicy(secrets={"shop": key, "other": CallbackSecret(key)})
    assert key[6:] not in repr(policy) + repr(policy.secret("shop", URL)) + str(policy)


def test_the_time_is_in_seconds() -> None:
    headers = CallbackSecret(CallbackSecret.generate()).headers("a", 1_700_000_000, b"")
    stamp = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
    assert stamp.year == 2023
