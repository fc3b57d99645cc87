"""The form for the arguments of a job: its fields come from the signature, its values go through the submit."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from mainspring import InvalidArguments, Mainspring
from mainspring.jobs.handlers import Handler
from mainspring.web.dashboard.argument_form import FieldKind, arguments_of, fields_of, texts_of


class Color(Enum):
    RED = "r"
    BLUE = "b"


@dataclass
class Address:
    street: str
    city: str = "Berlin"


@pytest.fixture
def handler(app: Mainspring) -> Handler:
    @app.job(name="form", redact="secret")
    def form(  # type: ignore[no-untyped-def]  # noqa: PLR0917
        order_id: int,
        note: str,
        secret: str = "s3cret",
        amount: float = 1.5,
        is_gift: bool = False,  # noqa: FBT001, FBT002
        size: Literal["S", "M", 7] = "M",
        color: Color | None = None,
        when: datetime | None = None,
        wait: timedelta = timedelta(seconds=90),
        address: Address | None = None,
        tags: Annotated[list[str], msgspec.Meta(max_length=3)] = [],  # noqa: B006
        untyped=None,
        either: int | str = 1,
        **rest: int,
    ) -> None: ...

    return app.registry.get("form")


def send(handler: Handler, **texts: str) -> dict[str, Any]:
    raw = arguments_of(fields_of(handler), {f"argument.{name}": text for name, text in texts.items()})
    positional, named = handler.arguments.decode(raw, "json")
    return handler.arguments.bind(tuple(positional), named)


def test_each_parameter_has_a_field_of_its_type(handler: Handler) -> None:
    fields = {field.name: field for field in fields_of(handler)}
    assert {name: field.kind.value for name, field in fields.items()} == {
        "order_id": "integer",
        "note": "text",
        "secret": "text",
        "amount": "number",
        "is_gift": "choice",
        "size": "choice",
        "color": "choice",
        "when": "text",
        "wait": "text",
        "address": "json",
        "tags": "json",
        "untyped": "any",
        "either": "any",
        "rest": "json",
    }
    assert [name for name, field in fields.items() if field.is_required] == ["order_id", "note"]
    assert fields["size"].choices == (('"S"', "S"), ('"M"', "M"), ("7", "7"))
    assert fields["color"].choices == (('"r"', "RED"), ('"b"', "BLUE"), ("null", "none (null)"))
    assert (fields["amount"].default, fields["size"].default, fields["wait"].default) == ("1.5", '"M"', '"PT90S"')
    assert fields["address"].hint == '{"street": …, "city": …}'
    assert (fields["address"].type, fields["tags"].type) == ("Address | None", "list[str]")
    assert fields["rest"].type == "dict[str, int]"


def test_values_arrive_with_the_types_of_the_handler(handler: Handler) -> None:
    given = send(
        handler,
        order_id=" 42 ",
        note="a\r\nb",
        amount="2.5",
        is_gift="true",
        size="7",
        color='"b"',
        when="2026-11-17T12:30:00Z",
        wait="PT5M",
        address='{"street": "Long"}',
        tags='["a", "b"]',
        untyped="[1]",
        either="word",
        rest='{"x": 1}',
    )
    assert (given["order_id"], given["note"], given["amount"], given["is_gift"]) == (42, "a\nb", 2.5, True)
    assert (given["size"], given["color"], given["address"]) == (7, Color.BLUE, Address("Long"))
    assert given["when"].year == 2026
    assert given["wait"] == timedelta(minutes=5)
    assert (given["tags"], given["untyped"], given["either"]) == (["a", "b"], [1], "word")
    assert given["rest"] == {"x": 1}


def test_an_empty_field_is_not_given_and_two_quotes_are_an_empty_text(handler: Handler) -> None:
    assert send(handler, order_id="1", note='""', tags="  ", color="null") == {
        "order_id": 1,
        "note": "",
        "color": None,
    }
    with pytest.raises(InvalidArguments, match="missing required field `note`") as caught:
        send(handler, order_id="1", note="")
    assert caught.value.parameter == "note"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("order_id", "4.5", "Expected `int`, got `str`"),
        ("order_id", "9" * 400, "Expected `int`"),
        ("amount", "much", "got `str`"),
        ("size", '"XXL"', "Invalid enum value"),
        ("when", "tomorrow", "Invalid RFC3339"),
        ("address", '{"city": "Rome"}', "missing required field `street`"),
        ("address", "{broken", "got `str`"),
        ("tags", '["a", "b", "c", "d"]', "length <= 3"),
    ],
)
def test_wrong_values_get_the_errors_of_a_submit(handler: Handler, name: str, text: str, problem: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        send(handler, **{"order_id": "1", "note": "n", name: text})
    assert caught.value.parameter == name
    assert problem in caught.value.problem


def test_existing_arguments_fill_the_form_and_come_back_as_they_were(handler: Handler) -> None:
    arguments = {"order_id": 7, "note": "", "is_gift": True, "address": {"street": "x"}, "either": "7", "gone": 1}
    texts = texts_of(fields_of(handler), arguments)
    assert texts["argument.address"] == '{\n  "street": "x"\n}'
    assert "argument.gone" not in texts
    raw = arguments_of(fields_of(handler), texts)
    assert msgspec.json.decode(raw) == {name: value for name, value in arguments.items() if name != "gone"}


def test_redacted_values_are_in_no_page(handler: Handler) -> None:
    (field,) = [field for field in fields_of(handler) if field.is_redacted]
    assert (field.name, field.default) == ("secret", "[redacted]")
    assert texts_of([field], {"secret": "hunter2"}) == {"argument.secret": "[redacted]"}


def test_hostile_text_is_a_text(handler: Handler) -> None:
    text = "<script>\x00\u202e\ud800"
    raw = arguments_of(fields_of(handler), {"argument.note": text, "argument.untyped": "[" * 5_000})
    assert msgspec.json.decode(raw)["note"] == "<script>\x00\u202e?"
    assert all(field.kind in FieldKind for field in fields_of(handler))
