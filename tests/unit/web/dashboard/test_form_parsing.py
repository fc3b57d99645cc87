"""The bodies of forms are parsed to fields, or refused with the problem and the remedy."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.web.dashboard import page
from mainspring.web.dashboard.page import MAX_FIELDS, parse_form
from mainspring.web.problems import Refused


def test_a_form_has_all_values_of_a_field_and_plain_line_ends() -> None:
    assert parse_form(b"name=a&name=b&empty=&text=1%0D%0A2") == {
        "name": ("a", "b"),
        "empty": ("",),
        "text": ("1\n2",),
    }


@pytest.mark.parametrize("body", [b"name=\xff", b"name=%FF"])
def test_a_form_that_is_not_encoded_in_utf_8_is_refused(body: bytes) -> None:
    with pytest.raises(Refused, match="not encoded in UTF-8; reload the page") as refused:
        parse_form(body)
    assert (refused.value.problem.status, refused.value.problem.type) == (422, "invalid-body")


def test_a_form_with_too_many_fields_is_refused() -> None:
    assert len(parse_form(b"&".join(b"n%d=1" % number for number in range(MAX_FIELDS)))) == MAX_FIELDS
    with pytest.raises(Refused, match="more than 1,000 fields, which is the limit; send fewer") as refused:
        parse_form(b"&".join([b"n=1"] * (MAX_FIELDS + 1)))
    assert (refused.value.problem.status, refused.value.problem.type) == (422, "invalid-body")


FORM_TEXT = st.text("a%+&= é0123456789ABCDEFabcdef\n\r\U0001f642", max_size=40)


@given(
    st.one_of(
        FORM_TEXT.map(str.encode),
        st.lists(st.tuples(FORM_TEXT, FORM_TEXT)).map(lambda form: urlencode(form).encode()),
    )
)
def test_a_form_is_parsed_as_the_standard_library_does_in_pieces_of_any_size(body: bytes) -> None:
    try:
        expected = [
            (name, value.replace("\r\n", "\n"))
            for name, value in parse_qsl(body.decode(), keep_blank_values=True, errors="strict")
        ]
    except UnicodeDecodeError:
        expected = None
    for size in (3, 4, 7, 65_536):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(page, "MAX_PIECE", size)
            if expected is None:
                with pytest.raises(Refused, match="not encoded in UTF-8"):
                    parse_form(body)
            else:
                assert sorted(
                    (name, value) for name, values in parse_form(body).items() for value in values
                ) == sorted(expected)
