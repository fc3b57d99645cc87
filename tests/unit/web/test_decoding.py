"""Bodies and queries are decoded, or refused with the place, the problem and the remedy, word by word."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from mainspring.errors import LimitExceeded
from mainspring.web.api.decoding import (
    MAX_PARAMETERS,
    MAX_SHOWN,
    checked_values,
    decode_json,
    decode_query,
    invalid_value,
)
from mainspring.web.problems import Refused


class Inner(msgspec.Struct, forbid_unknown_fields=True, rename={"own": "theirs"}):
    key: str = ""
    own: int = 0


class Body(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    inner: Inner | None = None
    parts: list[Inner] = []
    number: Annotated[int, msgspec.Meta(ge=1)] = 1


class Query(msgspec.Struct, forbid_unknown_fields=True, rename={"own": "theirs"}):
    limit: Annotated[int, msgspec.Meta(ge=1)] = 5
    own: int | None = None
    word: str = ""
    argument: dict[str, str] = {}


class Empty(msgspec.Struct, forbid_unknown_fields=True):
    pass


def problem_of(refused: pytest.ExceptionInfo[Refused]) -> tuple[int, str, str]:
    problem = refused.value.problem
    return problem.status, problem.type, str(problem.detail)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b'{"type": 1}', " at 'type': expected str, got int"),
        (b"[]", ": expected object, got array"),
        (b'{"type": "x", "number": 0}', " at 'number': expected int >= 1"),
        (b"{}", ": the field 'type' is missing; give it"),
        (b'{"typ": "x"}', ": there is no field 'typ'; did you mean 'type'?"),
        (b'{"x": 1}', ": there is no field 'x'; the fields are inner, number, parts, type"),
        (b'{"type": "x", "inner": {"x": 1}}', " at 'inner': there is no field 'x'; the fields are key, theirs"),
        (
            b'{"type": "x", "inner": {"thers": 1}}',
            " at 'inner': there is no field 'thers'; did you mean 'theirs'?",
        ),
        (
            b'{"type": "x", "parts": [{"x": 1}]}',
            " at 'parts[0]': there is no field 'x'; the fields are key, theirs",
        ),
        (b'{"type": "x", "parts": [{"key": 1}]}', " at 'parts[0].key': expected str, got int"),
        (b'{"a\\nb": 1}', r": there is no field 'a\nb'; the fields are inner, number, parts, type"),
    ],
)
def test_a_body_of_a_wrong_type_is_explained(raw: bytes, problem: str) -> None:
    with pytest.raises(Refused) as refused:
        decode_json(raw, Body)
    assert problem_of(refused) == (422, "invalid-body", f"the body is wrong{problem}")
    with pytest.raises(Refused) as refused:
        decode_json(raw, Body, what="line 3")
    assert problem_of(refused) == (422, "invalid-body", f"line 3 is wrong{problem}")


class Capital(msgspec.Struct):
    X: int


def test_the_name_of_a_field_is_shown_as_it_is() -> None:
    with pytest.raises(Refused, match="wrong at 'X': expected int, got str"):
        decode_json(b'{"X": "1"}', Capital)


def test_a_body_without_fields_says_so() -> None:
    with pytest.raises(Refused) as refused:
        decode_json(b'{"x": 1}', Empty)
    assert problem_of(refused)[2] == "the body is wrong: there is no field 'x'; it takes no fields"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b'{"type":', "line 3 is not valid JSON: Input data was truncated; correct it"),
        (b'{"type": "\xff"}', "line 3 is not UTF-8 (invalid start byte, byte 0); encode it as UTF-8"),
    ],
)
def test_a_malformed_body_is_explained(raw: bytes, problem: str) -> None:
    with pytest.raises(Refused) as refused:
        decode_json(raw, Body, what="line 3")
    assert problem_of(refused) == (400, "invalid-json", problem)


def test_a_body_is_decoded_to_its_type() -> None:
    assert decode_json(b'{"type": "x", "parts": [{"theirs": 2}]}', Body) == Body("x", parts=[Inner(own=2)])
    assert decode_json(msgspec.Raw(b'{"type": "x"}'), Body) == Body("x")


DEEPER_THAN_ANY_STACK = 1_000_000  # from Python 3.14 on, the decoder stops at the end of the stack


@pytest.mark.parametrize("unit", [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_counts_arrays_and_objects(unit: tuple[bytes, bytes]) -> None:
    def nested(levels: int) -> bytes:
        return unit[0] * levels + b"1" + unit[1] * levels

    too_deep = "line 3 has arrays and objects in more than 3 levels; send flatter data"
    decode_json(nested(3), Any, max_depth=3)
    with pytest.raises(Refused) as refused:
        decode_json(nested(4), Any, what="line 3", max_depth=3)
    assert problem_of(refused) == (422, "too-deep", too_deep)
    decode_json(nested(4), Any, checks_depth=False, max_depth=3)
    with pytest.raises(Refused) as refused:
        decode_json(nested(DEEPER_THAN_ANY_STACK), Any, what="line 3", checks_depth=False, max_depth=3)
    assert problem_of(refused) == (422, "too-deep", too_deep)


def test_depth_is_that_of_the_deepest_part_and_brackets_in_strings_do_not_count() -> None:
    wide = b"[" + b",".join([b"[[]]"] * 9) + b"]"
    decode_json(wide, Any, max_depth=3)
    with pytest.raises(Refused, match="more than 2 levels"):
        decode_json(wide, Any, max_depth=2)
    assert decode_json(b'["[[\\"[["]', list[str], max_depth=1) == ['[["[[']


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"", Query()),
        (b"limit=7&theirs=3&word=a%20b", Query(7, 3, "a b")),
        (b"word=", Query(word="")),
        (b"word=a;b=c", Query(word="a;b=c")),
        (b"word=null", Query(word="null")),
        (b"word=%C3%A9", Query(word="é")),
        (b"argument.a=1&argument.b.c=2", Query(argument={"a": "1", "b.c": "2"})),
        (b"&".join(b"argument.a%d=1" % n for n in range(MAX_PARAMETERS)), None),
    ],
)
def test_a_query_is_decoded(query: bytes, expected: Query | None) -> None:
    found = decode_query(query, Query)
    assert found == (expected or Query(argument={f"a{n}": "1" for n in range(MAX_PARAMETERS)}))


KNOWN = "the parameters are limit, theirs, word, argument.NAME"


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        (b"limit=0", "a parameter is wrong at 'limit': expected int >= 1"),
        (b"limit", "a parameter is wrong at 'limit': expected int, got str"),
        (b"limit=1&limit=1", "the parameter 'limit' is given several times; give it once"),
        (b"argument.a=1&argument.a=1", "the parameter 'argument.a' is given several times; give it once"),
        (b"x%00=1", r"the parameter 'x\x00' contains a NUL character; leave it out"),
        (b"word=%00", "the parameter 'word' contains a NUL character; leave it out"),
        (b"word=%ff", "the query is not UTF-8 in percent-encoding; encode it as UTF-8"),
        (b"\xff=1", "the query is not UTF-8 in percent-encoding; encode it as UTF-8"),
        (b"own=1", f"this endpoint has no parameter 'own'; {KNOWN}"),
        (b"lmit=1", "this endpoint has no parameter 'lmit'; did you mean 'limit'?"),
        (b"argument=1", "this endpoint has no parameter 'argument'; did you mean 'argument.NAME'?"),
        (b"argument.=1", "this endpoint has no parameter 'argument.'; did you mean 'argument.NAME'?"),
        (b"limit.a=1", "this endpoint has no parameter 'limit.a'; did you mean 'limit'?"),
        (b".a=1", f"this endpoint has no parameter '.a'; {KNOWN}"),
        (b"theirs=null", "the parameter 'theirs' cannot be 'null'; give another value"),
        (
            b"&".join(b"argument.a%d=1" % n for n in range(MAX_PARAMETERS + 1)),
            "the query has more than 100 parameters; give fewer",
        ),
        (b"msp_0123456789_abc=1", f"this endpoint has no parameter 'msp_0123456789_***'; {KNOWN}"),
        (b"x" * 300 + b"=1", f"this endpoint has no parameter '{'x' * MAX_SHOWN}'; {KNOWN}"),
    ],
)
def test_a_wrong_query_is_explained(query: bytes, problem: str) -> None:
    with pytest.raises(Refused) as refused:
        decode_query(query, Query)
    assert problem_of(refused) == (422, "invalid-query", problem)


def test_a_query_without_parameters_says_so() -> None:
    with pytest.raises(Refused) as refused:
        decode_query(b"a=1", Empty)
    assert problem_of(refused)[2] == "this endpoint has no parameter 'a'; it takes no parameters"


TOO_LARGE = LimitExceeded(what="the body", size=2, limit=1, remedy="send less")


@pytest.mark.parametrize("error", [ValueError("x"), TypeError("x"), OverflowError("x"), TOO_LARGE])
def test_errors_of_checks_are_problems_of_the_request(error: Exception) -> None:
    with pytest.raises(Refused) as refused, checked_values():
        raise error
    assert problem_of(refused) == (422, "invalid-value", str(error))
    assert refused.value.__cause__ is error
    assert invalid_value("x").problem.detail == "x"
