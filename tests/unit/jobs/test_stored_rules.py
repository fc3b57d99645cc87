"""Rules as a store keeps them."""

import pytest

from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.rules import Every, Rule
from mainspring.jobs.recurrence.stored_rules import UNREADABLE, decode_rule, encode_rule


@pytest.mark.parametrize("rule", [Cron("0 2 * * 5L", tz="Asia/Taipei", dst_fold="both"), Every(0.5, anchor=7)])
def test_a_rule_comes_back_as_it_was(rule: Rule) -> None:
    assert decode_rule(encode_rule(rule)) == rule


def test_the_text_does_not_depend_on_the_order_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Cron("@daily")
    text = encode_rule(rule)
    backwards = dict(reversed(rule.describe().items()))
    monkeypatch.setattr(Cron, "describe", lambda _: backwards)
    assert encode_rule(rule) == text


def test_a_rule_is_decoded_once() -> None:
    text = encode_rule(Every(60, anchor=123))
    assert decode_rule(text) is decode_rule(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind":"moon"}', '{"kind":"every","interval":"x","anchor":0}'])
def test_what_no_rule_can_be_made_of_is_unreadable(text: str) -> None:
    with pytest.raises(UNREADABLE):
        decode_rule(text)
