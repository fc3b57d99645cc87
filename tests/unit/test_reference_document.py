"""The page with all options is what the docstrings say, and no option is left out."""

import inspect

import pytest

from mainspring import Mainspring
from scripts.reference import CALLS, PAGE, Call, described_options, options_of, page


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.title)
def test_every_option_is_described(call: Call) -> None:
    described = described_options(call.target)
    options = [option.name for option in options_of(call.target)]
    assert [name for name in options if not described.get(name)] == [], "describe them in the docstring"
    assert set(described) <= set(options), "the docstring describes options that do not exist"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m scripts.reference"


def test_help_of_the_decorator_shows_its_options() -> None:
    shown = f"{inspect.signature(Mainspring.job)}\n{inspect.getdoc(Mainspring.job)}"
    for name in ("queue: 'str' = 'default'", "retry: 'Retry'", "`timeout`", "`at_most_once`"):
        assert name in shown
