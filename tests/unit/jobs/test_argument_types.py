"""Types of parameters: what a handler is given is what its annotations say."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pytest

from mainspring import InvalidArguments
from mainspring.jobs.arguments import Arguments, single_item_function
from mainspring.jobs.serializers import JsonSerializer, MsgpackSerializer, Serializer

if TYPE_CHECKING:
    from fractions import Fraction


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    city: str
    code: int = 0


@dataclass
class Customer:
    name: str
    addresses: list[Address] = field(default_factory=list)


class Order(msgspec.Struct):
    id: UUID
    total: Decimal
    placed: datetime


class Filter(TypedDict):
    status: str


class Form:
    """A pydantic model by its methods."""

    def __init__(self, fields: dict[str, int]) -> None:
        self.fields = fields

    def model_dump(self, *, mode: str) -> dict[str, int]:
        return self.fields

    @classmethod
    def model_validate(cls, data: Any) -> "Form":
        if "count" not in data:
            raise ValueError("count: Field required")
        return cls(dict(data))

    def __repr__(self) -> str:
        return f"Form({self.fields})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and other.fields == self.fields

    def __hash__(self) -> int:
        return 0


def carry(kind: Any, value: Any, serializer: Serializer) -> Any:
    """Send a value through the store, as the argument of a handler with this annotation."""

    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = kind
    arguments = Arguments("handler", handler, serializer)
    return arguments.decode(arguments.encode((value,), {}), serializer.name)[0][0]


UUID_1 = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("serializer", [JsonSerializer(), MsgpackSerializer()], ids=["json", "msgpack"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (datetime, NOON),
        (date, date(2026, 3, 1)),
        (timedelta, timedelta(minutes=30)),
        (Decimal, Decimal("19.90")),
        (UUID, UUID_1),
        (Color, Color.BLUE),
        (Literal["a", "b"], "b"),
        (bytes, b"\x00\xff"),
        (Address, Address("Taipei", 100)),
        (Customer, Customer("Ada", [Address("London")])),
        (Order, Order(UUID_1, Decimal("1.50"), NOON)),
        (Filter, {"status": "open"}),
        (Form, Form({"count": 1})),
        (list[Form], [Form({"count": 1}), Form({"count": 2})]),
        (dict[str, Address], {"home": Address("Kyoto")}),
        (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})),
        (tuple[int, ...], (1, 2, 3)),
        (int | str, "either"),
        (int | None, None),
        (Any, {"anything": [1, None, True]}),
    ],
    ids=repr,
)
def test_an_argument_arrives_as_its_annotation_says(kind: Any, value: Any, serializer: Serializer) -> None:
    arrived = carry(kind, value, serializer)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (datetime, "yesterday"),
        (UUID, "not-a-uuid"),
        (Color, "green"),
        (Literal["a", "b"], "c"),
        (Address, Address(7)),  # type: ignore[arg-type]
        (Address, {"town": "Taipei"}),
        (Order, {"id": str(UUID_1)}),
        (Form, Form({"other": 1})),
        (tuple[int, int], (1, 2, 3)),
        (Decimal, "many"),
        (int, True),
    ],
    ids=repr,
)
def test_an_argument_that_does_not_fit_is_refused_by_name(kind: Any, value: Any) -> None:
    with pytest.raises(InvalidArguments) as caught:
        carry(kind, value, JsonSerializer())
    assert caught.value.parameter == "value"


def test_a_model_says_itself_what_is_wrong() -> None:
    with pytest.raises(InvalidArguments, match="count: Field required"):
        carry(Form, Form({"other": 1}), JsonSerializer())


def test_a_constraint_of_an_annotation_holds() -> None:
    share = Annotated[float, msgspec.Meta(ge=0, le=1)]
    assert carry(share, 0.5, JsonSerializer()) == 0.5
    with pytest.raises(InvalidArguments, match="<= 1"):
        carry(share, 1.5, JsonSerializer())


def test_annotations_that_cannot_be_read_are_refused_at_registration() -> None:
    def handler(share: "Fraction") -> None: ...

    with pytest.raises(TypeError, match=r"handler 'shop': its annotations cannot be read.*TYPE_CHECKING"):
        Arguments("shop", handler, JsonSerializer())


def test_annotations_of_a_batch_handler_that_cannot_be_read_are_refused_with_the_same_remedy() -> None:
    def handler(shares: "list[Fraction]") -> None: ...

    with pytest.raises(TypeError, match=r"handler 'shop': its annotations cannot be read.*TYPE_CHECKING"):
        single_item_function("shop", handler)


def test_a_parameter_that_no_store_carries_is_refused_at_registration() -> None:
    def handler(both: Address | Customer) -> None: ...

    with pytest.raises(TypeError, match="handler 'shop': its parameters cannot be stored"):
        Arguments("shop", handler, JsonSerializer())


@pytest.mark.parametrize("function", [42, "text"])
def test_what_has_no_signature_is_no_handler(function: Any) -> None:
    with pytest.raises(TypeError, match="must be a function with a signature"):
        Arguments("shop", function, JsonSerializer())
