"""Names that a user may have meant by a mistyped one."""

import pytest

from mainspring import UnknownHandler
from mainspring.similar_names import did_you_mean, find_similar

HANDLERS = ("shop.cancel_order", "shop.send_mail", "billing.cancel_order")


@pytest.mark.parametrize(
    ("typed", "known", "found"),
    [
        ("ordes", ("orders", "mail"), ["orders"]),
        ("Orders", ("orders", "mail"), ["orders"]),
        (" send mail ", ("send-mail",), ["send-mail"]),
        ("send-mail", ("send_mail",), ["send_mail"]),
        ("shop.cancel_ordr", HANDLERS, ["shop.cancel_order"]),
        ("a b", ("a-b",), ["a-b"]),
        ("sendmail", HANDLERS, ["shop.send_mail"]),
        ("pay", ("company.accounting.invoices.pay",), ["company.accounting.invoices.pay"]),
        ("cancel_ordr", HANDLERS, ["shop.cancel_order", "billing.cancel_order"]),
        ("abcd", ("abcd1", "abcd2", "abcd3", "abcd4"), ["abcd4", "abcd3", "abcd2"]),
        ("zzz", HANDLERS, []),
        ("orders", ("orders",), []),
        ("mail", (), []),
    ],
)
def test_similar_names_are_found_the_most_similar_first(
    typed: str, known: tuple[str, ...], found: list[str]
) -> None:
    assert find_similar(typed, known) == found


def test_the_last_part_of_a_name_is_compared_by_the_separator() -> None:
    assert find_similar("Taipeh", ["Asia/Taipei"], separator="/") == ["Asia/Taipei"]
    assert did_you_mean("Taipeh", ["Asia/Taipei"]) is None
    assert did_you_mean("Taipeh", ["Asia/Taipei"], separator="/") == "did you mean 'Asia/Taipei'?"


def test_the_question_names_all_that_are_similar() -> None:
    assert did_you_mean("ordes", ["orders", "order"]) == "did you mean 'orders', 'order'?"
    assert did_you_mean("paay", ["accounting.invoices.pay"]) == "did you mean 'accounting.invoices.pay'?"


def test_an_unknown_handler_is_answered_with_the_handler_that_was_meant() -> None:
    assert str(UnknownHandler(name="shop.send_mial", known=HANDLERS)).endswith("; did you mean 'shop.send_mail'?")
    assert "decorate it with @app.job" in str(UnknownHandler(name="zzz", known=HANDLERS))
