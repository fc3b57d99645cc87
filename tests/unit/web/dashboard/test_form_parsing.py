"""The bodies of forms are parsed to fields, or refused with the problem and the remedy."""

from __future__ import annotations

import pytest

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
