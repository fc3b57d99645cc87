"""Tokens and their records: secrets that are not stored, and everything that is no valid token."""

import os
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.errors import TokenInvalid
from mainspring.security.permissions import Permissions, Scope
from mainspring.security.tokens import (
    ALPHABET,
    KEPT_AFTER_END,
    MAX_LENGTH,
    TokenRecord,
    TokenState,
    authenticate,
    hash_token,
    hide_tokens,
    make_token,
    merge_uses,
    parse_token,
    revoke,
    without_old,
)

READ = Permissions(scopes=frozenset({Scope.READ}))
SECRET, RECORD = make_token("shop", READ, created=1_000, expires=5_000)
STORED = {RECORD.id: RECORD}


def test_a_token_has_a_form_that_scanners_find_and_a_double_click_selects() -> None:
    assert re.fullmatch(r"msp_[0-9A-Za-z]{10}_[0-9A-Za-z]{49}", SECRET)
    assert len(SECRET) == MAX_LENGTH
    assert parse_token(SECRET) == RECORD.id


def test_a_token_has_256_random_bits() -> None:
    wanted: list[int] = []

    def count(bits: int) -> int:
        wanted.append(bits)
        return (1 << bits) - 1

    token, _ = make_token("shop", READ, created=0, random_bits=count)
    assert wanted == [59, 256]
    assert parse_token(token)
    others = {make_token("shop", READ, created=0)[0] for _ in range(100)}
    assert len(others) == 100


def test_the_operating_system_makes_the_random_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []

    def count(number: int) -> bytes:
        wanted.append(number)
        return b"\xff" * number

    monkeypatch.setattr(os, "urandom", count)
    token, _ = make_token("shop", READ, created=0)
    assert wanted == [8, 32]
    full, _ = make_token("shop", READ, created=0, random_bits=lambda bits: (1 << bits) - 1)
    assert token == full


def test_the_record_has_the_rights_of_the_token() -> None:
    permissions = Permissions(
        scopes=frozenset({Scope.SUBMIT, Scope.READ}), types=frozenset({"b", "a"}), queues=frozenset({"z", "y"})
    )
    _, record = make_token("shop", permissions, created=7, expires=9)
    assert (record.name, record.scopes) == ("shop", ("read", "submit"))
    assert (record.types, record.queues) == (("a", "b"), ("y", "z"))
    assert (record.created, record.expires, record.revoked, record.last_used) == (7, 9, None, None)
    assert record.permissions == permissions
    assert (record.identity.name, record.identity.token) == ("shop", record.id)


def error_of(token: str, records: dict[str, TokenRecord], now: int = 2_000) -> str:
    with pytest.raises(TokenInvalid) as caught:
        authenticate(token, records, now)
    return str(caught.value)


def test_each_error_says_what_is_wrong_and_what_to_do() -> None:
    assert error_of("msp_x", STORED) == (
        "this is not a token of Mainspring, or not all of it; copy the whole token: msp_ and 60 more characters"
    )
    wrong = SECRET[:-1] + ("0" if SECRET[-1] != "0" else "1")
    assert error_of(wrong, STORED) == (
        "the token has a wrong character: its checksum does not match; copy the token again; upper and lower case "
        "matter"
    )
    assert error_of(SECRET, {}) == (
        "the token is unknown here; check that this is the right server, or make one: mainspring tokens create "
        "NAME --scope read"
    )
    assert error_of(SECRET, STORED, now=5_000) == (
        "the token 'shop' is expired; make another: mainspring tokens create NAME --scope read"
    )


def test_the_record_has_a_hash_and_nothing_of_the_secret() -> None:
    secret = SECRET.rpartition("_")[2]
    assert secret not in repr(RECORD)
    assert RECORD.digest == hash_token(SECRET)
    assert (RECORD.scopes, RECORD.types, RECORD.queues, RECORD.created) == (("read",), None, None, 1_000)


def test_a_token_is_valid_until_it_expires() -> None:
    assert authenticate(SECRET, STORED, 4_999) is RECORD
    with pytest.raises(TokenInvalid, match="'shop' is expired"):
        authenticate(SECRET, STORED, 5_000)


def test_a_revoked_token_is_invalid() -> None:
    revoked = revoke(RECORD, 2_000)
    with pytest.raises(TokenInvalid, match="'shop' is revoked"):
        authenticate(SECRET, {RECORD.id: revoked}, 2_000)
    assert revoke(revoked, 3_000) is revoked


def test_a_token_of_another_store_is_unknown() -> None:
    other, _ = make_token("shop", READ, created=1_000)
    with pytest.raises(TokenInvalid, match="unknown here"):
        authenticate(other, STORED, 2_000)


def test_a_token_with_a_known_id_and_another_secret_is_unknown() -> None:
    _, other = make_token("other", READ, created=1_000)
    with pytest.raises(TokenInvalid, match="unknown here"):
        authenticate(SECRET, {RECORD.id: replace(other, id=RECORD.id)}, 2_000)


@given(st.integers(min_value=0, max_value=len(SECRET) - 1), st.characters())
def test_a_token_with_one_other_character_is_invalid(place: int, character: str) -> None:
    changed = SECRET[:place] + character + SECRET[place + 1 :]
    if changed != SECRET:
        with pytest.raises(TokenInvalid):
            authenticate(changed, STORED, 2_000)


@given(st.text(max_size=100) | st.text(alphabet=ALPHABET + "_", max_size=80))
@example("")
@example(SECRET[:-1])
@example(SECRET + "0")
@example(SECRET.upper())
@example(SECRET.lower())
@example(SECRET.swapcase())
@example(SECRET + "\n")
@example(" " + SECRET)
@example(SECRET.replace("msp_", "MSP_"))
@example(SECRET[:20] + "\0" + SECRET[21:])
@example("msp_" + "０" * 10 + "_" + "０" * 49)  # noqa: RUF001 - digits that are not ASCII
def test_no_other_text_is_a_token_and_no_error_repeats_it(text: str) -> None:
    with pytest.raises(TokenInvalid) as caught:
        authenticate(text, STORED, 2_000)
    assert len(text) < 8 or text not in str(caught.value)


def test_a_scope_of_a_newer_version_allows_nothing() -> None:
    assert replace(RECORD, scopes=("fly",)).permissions == Permissions()


def test_the_state_and_the_end_of_a_token() -> None:
    endless = replace(RECORD, expires=None)
    assert [endless.state(10**18), endless.ended(10**18)] == [TokenState.ACTIVE, None]
    revoked = revoke(RECORD, 3_000)
    assert [revoked.state(1), revoked.ended(4_000), revoked.ended(6_000)] == [TokenState.REVOKED, 3_000, 3_000]
    assert [RECORD.state(4_999), RECORD.ended(4_999), RECORD.ended(5_000)] == [TokenState.ACTIVE, None, 5_000]


def test_tokens_that_ended_long_ago_are_left_out() -> None:
    assert without_old([RECORD], 5_000 + KEPT_AFTER_END) == [RECORD]
    assert without_old([RECORD], 5_001 + KEPT_AFTER_END) == []
    assert without_old([replace(RECORD, expires=None)], 10**18)


def named(name: str, created: int = 0) -> TokenRecord:
    return make_token(name, READ, created=created)[1]


def test_lists_are_sorted_and_have_the_last_use() -> None:
    b, old, new = named("b"), named("a", 1), named("a", 2)
    merged = merge_uses([b, new, old], {b.id: 7, "gone": 9})
    assert [(record.name, record.last_used) for record in merged] == [("a", None), ("a", None), ("b", 7)]
    assert [record.id for record in merged[:2]] == [old.id, new.id]
    assert merge_uses([replace(b, last_used=9)], {b.id: 7})[0].last_used == 9
    assert merge_uses([b], {b.id: 0})[0].last_used == 0


def test_tokens_in_a_text_are_hidden() -> None:
    hidden = hide_tokens(f"GET /?token={SECRET}&x=1")
    assert hidden == f"GET /?token=msp_{RECORD.id}_***&x=1"
    assert SECRET[-20:] not in hide_tokens(f"/{SECRET}/{SECRET}")
