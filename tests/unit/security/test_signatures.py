"""Signatures: one text for each, unambiguous bytes, and no change that goes unnoticed."""

from typing import Any

import msgspec
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mainspring import KeyRing
from mainspring.security import signatures
from mainspring.security.signatures import JOB, REPLACING, SCHEDULE, Stamp, find_problem, read, sign

RING = KeyRing({"2026-11": KeyRing.generate(), "other": KeyRing.generate()}, sign_with="2026-11")
FIELDS = ("job-1", "shop.pay", "default", b'{"order":42}', "json", None, [("user", "7")], None)
TEXT = sign(RING, JOB, FIELDS, signed=1_000, until=9_001_000)

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
fields = st.lists(st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=8), max_size=6)


def stamp_of(text: str) -> Stamp:
    stamp = read(text)
    assert stamp is not None
    return stamp


def test_a_signature_says_what_it_is() -> None:
    stamp = stamp_of(TEXT)
    assert (stamp.form, stamp.key, stamp.signed, stamp.until, stamp.alias) == (
        JOB,
        "2026-11",
        1_000,
        9_001_000,
        None,
    )
    assert find_problem(RING, stamp, FIELDS) is None
    assert not stamp.is_expired(9_001_000)
    assert stamp.is_expired(9_001_001)
    assert not stamp_of(sign(RING, SCHEDULE, FIELDS, signed=1)).is_expired(1 << 61)


def test_a_job_that_may_replace_another_names_the_id_that_was_signed() -> None:
    text = sign(RING, REPLACING, FIELDS, signed=1_000, until=9_001_000, alias="Auftrag für 7")
    assert stamp_of(text).alias == "Auftrag für 7"
    assert read(text.rpartition(".")[0]) is None
    assert read(text.replace(".417566", ".4175zz")) is None
    assert read(f"{TEXT}.{b'x'.hex()}") is None


def test_the_end_is_never_before_the_wanted_one() -> None:
    for until in (1_001, 1_000_999, 1_001_000, 1_001_001):
        assert 0 <= stamp_of(sign(RING, JOB, FIELDS, signed=1_000, until=until)).until - until < 1_000_000


def test_the_key_must_be_one_of_the_ring() -> None:
    ring = KeyRing({"another": KeyRing.generate()})
    assert find_problem(ring, stamp_of(TEXT), FIELDS) == "its signature is of the unknown key '2026-11'"


def test_another_secret_of_the_same_name_is_noticed() -> None:
    ring = KeyRing({"2026-11": KeyRing.generate()})
    assert "wrong" in str(find_problem(ring, stamp_of(TEXT), FIELDS))


def test_values_that_cannot_be_signed_are_a_problem_and_no_error() -> None:
    for value in (1 << 70, "\ud800", object()):
        assert find_problem(RING, stamp_of(TEXT), (value,)) is not None


@given(fields, fields)
def test_different_fields_have_different_bytes(one: list[Any], other: list[Any]) -> None:
    same = msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)
    encoded = [signatures._encode(("1j.k.0.0", *each)) for each in (one, other)]
    assert (encoded[0] == encoded[1]) == same
    assert msgspec.msgpack.decode(encoded[0])[1:] == msgspec.msgpack.decode(msgspec.msgpack.encode(one))


@given(fields)
def test_what_was_signed_is_right_and_a_changed_copy_is_not(values: list[Any]) -> None:
    stamp = stamp_of(sign(RING, JOB, tuple(values), signed=5, until=1_000_005))
    assert find_problem(RING, stamp, tuple(values)) is None
    assert find_problem(RING, stamp, (*values, None)) is not None
    for place in range(len(values)):
        changed = list(values)
        changed[place] = "another value of this field"
        assert find_problem(RING, stamp, tuple(changed)) is not None


@given(st.integers(0, len(TEXT) - 1), st.characters(codec="utf-8"))
@example(0, "2")
@example(1, "r")
@example(1, "d")
def test_a_text_with_one_other_character_is_refused(place: int, character: str) -> None:
    changed = TEXT[:place] + character + TEXT[place + 1 :]
    assume(changed != TEXT)
    stamp = read(changed)
    assert stamp is None or find_problem(RING, stamp, FIELDS) is not None


@given(st.text() | st.from_regex(r"1[a-z]\.[a-z0-9-]{1,9}\.[0-9a-f]{1,20}\.[0-9a-f]{1,20}\.[0-9a-f]{30,130}"))
@example(TEXT.replace(".3e8.", ".03e8."))
@example(TEXT.replace(".3e8.", ".3E8."))
@example(TEXT.replace(".3e8.", ".0x3e8."))
@example(TEXT.replace(".3e8.", ".3_e8."))
@example(TEXT.upper())
@example(TEXT + "\n")
@example(TEXT + "0")
@example(TEXT.replace("3e8", "\u0663e8"))
@example("1j.2026-11.ffffffffffffffff.0." + "0" * 32)
def test_any_other_text_is_refused(text: str) -> None:
    assume(text != TEXT)
    stamp = read(text)
    assert stamp is None or find_problem(RING, stamp, FIELDS) is not None
