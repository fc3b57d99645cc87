"""Content that others have written, made readable and harmless."""

import msgspec
import pytest

from mainspring.web.dashboard.content import block, is_empty, json_block, json_line, line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢 😀", "plain é 漢 😀"),
        ("a\x00b\x1b[31m", "a⟨U+0000⟩b⟨U+001B⟩[31m"),
        ("abc\u202etxt.exe", "abc⟨U+202E⟩txt.exe"),
        ("zero\u200bwidth\ufeff", "zero⟨U+200B⟩width⟨U+FEFF⟩"),
        ("\x7f\x85\u2028", "⟨U+007F⟩⟨U+0085⟩⟨U+2028⟩"),
        ("tag\U000e0041", "tag⟨U+E0041⟩"),
        ("a\tb\nc", "a\tb\nc"),
        ("\ud800", "⟨U+D800⟩"),
    ],
)
def test_invisible_characters_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_line_has_no_line_breaks_and_is_cut() -> None:
    assert line("first\nsecond").text == "first"
    assert line("first\nsecond").is_cut
    assert line("a\tb").text == "a⟨U+0009⟩b"
    assert (line("x" * 1_000_000).text, line("x" * 1_000_000).rest) == (
        "x" * 160,
        "cut: 1,000,000 characters in all",
    )
    assert not line(None)
    assert line("all").rest == ""


def test_a_block_is_cut() -> None:
    assert block("a\nb").text == "a\nb"
    assert block("x" * 30_000).size == 30_000
    assert len(block("x" * 30_000).text) == 20_000


def test_json_is_formatted_unless_it_is_huge() -> None:
    raw = msgspec.Raw(b'{"order_id":42,"note":"<script>\\u202e"}')
    assert json_block(raw).text == '{\n  "order_id": 42,\n  "note": "<script>\\u202e"\n}'
    assert json_line(raw).text == '"order_id": 42, "note": "<script>\\u202e"'
    assert json_line({"a:b,c": 'x:"y,z', "d": [1, 2]}).text == '"a:b,c": "x:\\"y,z", "d": [1, 2]'
    huge = msgspec.Raw(msgspec.json.encode({"text": "x" * 1_000_000}))
    assert json_block(huge).is_cut
    assert len(json_block(huge).text) == 20_000
    assert len(json_line(huge).text) <= 160
    assert json_block(msgspec.Raw(b"{broken")).text == "{broken"
    assert json_line([1, "a"]).text == '[1, "a"]'
    assert is_empty(msgspec.Raw(b"{}"))
    assert is_empty(None)
    assert not is_empty(msgspec.Raw(b"0"))
