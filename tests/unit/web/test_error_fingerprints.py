"""The fingerprint of an error groups dead letters with the same cause."""

from __future__ import annotations

import pytest

from mainspring.jobs.worker.error_text import describe_error
from mainspring.web.dashboard.error_fingerprints import MAX_MESSAGE, fingerprint_of, normalize


def charge(order: int) -> None:
    raise ConnectionError(f"order {order}: no answer from 10.0.0.{order}:443")


def text_of(order: int) -> str:
    try:
        charge(order)
    except ConnectionError as error:
        return describe_error(error)
    raise AssertionError


def test_the_same_error_with_other_values_has_the_same_fingerprint() -> None:
    first, second = fingerprint_of(text_of(4)), fingerprint_of(text_of(17))
    assert first == second
    assert first.key == second.key
    assert first.type == "ConnectionError"
    assert first.message == "order #: no answer from #"
    assert first.place == "web/test_error_fingerprints.py in charge"
    assert first.title == "ConnectionError: order #: no answer from #"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no customer 42", "no customer #"),
        ("no customer 'ann'", "no customer 'ann'"),
        ("no mail to ann.b@shop.example.com", "no mail to <mail>"),
        ("job 0199c1a2-7c4e-7b1f-9a3d-5e6f70819203 is gone", "job <id> is gone"),
        ("<Order at 0x7f3a8c>", "<Order at <address>>"),
        ("digest 9f86d081884c7d65 differs", "digest <id> differs"),
        ("at 2026-11-17T12:00:00", "at #-#-#T#"),
        ("deadbeef is no number, but added is a word", "deadbeef is no number, but added is a word"),
        (f"cannot read {'x' * 40!r} here", "cannot read '…' here"),
        ("two   spaces\tand tabs", "two spaces and tabs"),
    ],
)
def test_values_that_vary_are_replaced(message: str, expected: str) -> None:
    assert normalize(message) == expected


def test_the_line_number_is_no_part_of_the_place() -> None:
    text = 'ValueError: no\n  File "/srv/shop/orders.py", line {}, in pay\n    charge()'
    assert fingerprint_of(text.format(3)).key == fingerprint_of(text.format(300)).key
    assert fingerprint_of(text.format(3)).key != fingerprint_of(text.format(3).replace("in pay", "in book")).key


def test_the_place_is_the_innermost_frame_of_own_code() -> None:
    text = (
        "TimeoutError: read\n"
        '  File "/srv/shop/orders.py", line 3, in pay\n    client.post()\n'
        '  File "/venv/lib/python3.11/site-packages/client/api.py", line 9, in post\n    raise TimeoutError\n'
        'caused by: OSError: reset\n  File "/srv/shop/other.py", line 1, in elsewhere\n'
    )
    assert fingerprint_of(text).place == "shop/orders.py in pay"
    only_library = 'OSError\n  File "/usr/lib/python3.11/socket.py", line 9, in connect\n    raise'
    assert fingerprint_of(only_library).place == "python3.11/socket.py in connect"


@pytest.mark.parametrize(
    ("text", "type_", "message"),
    [
        ("ValueError", "ValueError", ""),
        ("KeyError: 'name'", "KeyError", "'name'"),
        ("SignatureInvalid: the key is not known", "SignatureInvalid", "the key is not known"),
        ("expired: it was not started in time", None, "expired: it was not started in time"),
        ("the worker died 3 times", None, "the worker died # times"),
        ('shop.errors.Refused: no\n  File "a.py", line 1, in b', "shop.errors.Refused", "no"),
        ("", None, ""),
        (None, None, ""),
    ],
)
def test_texts_without_a_traceback(text: str | None, type_: str | None, message: str) -> None:
    found = fingerprint_of(text)
    assert (found.type, found.message) == (type_, message)
    assert found.title


def test_a_hostile_text_has_a_bounded_fingerprint() -> None:
    long = ["a@" * 50_000, "0" * 100_000, "'" * 100_000, '  File "' * 20_000, "A" * 100_000 + ": x"]
    for text in [*long, "\udc80 \x00 \u202e"]:
        found = fingerprint_of(text)
        assert len(found.message) <= MAX_MESSAGE
        assert len(found.key) == 16
