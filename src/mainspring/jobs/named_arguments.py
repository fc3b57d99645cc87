"""The arguments of a job type whose parameters are not declared: any arguments, by name.

A job type of `app.remote_job` has no Python function, so that its arguments cannot be compared with a signature.
They are stored as they are given, and the remote worker checks them. A submit still refuses values that the
encoding would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

from mainspring.errors import InvalidArguments
from mainspring.jobs.arguments import Arguments
from mainspring.jobs.serializers import Serializer
from mainspring.jobs.type_changes import check_for

_check = check_for(Any)


def has_any_parameters(function: Callable[..., Any]) -> bool:
    """Return whether the only parameter of a function is `**kwargs`, so that it accepts any named arguments."""
    return [each.kind for each in signature(function).parameters.values()] == [Parameter.VAR_KEYWORD]


class NamedArguments(Arguments):
    """Checks, encodes and decodes the arguments of a job type without a signature: any names, plain data as
    values.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], serializer: Serializer, redacted: Sequence[str] = ()
    ) -> None:
        self._type = name
        self._free_serializer = serializer
        super().__init__(name, function, serializer, redacted)

    def bind(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name; raise `InvalidArguments` for positional ones, as the parameters have no
        order.
        """
        if positional:
            raise InvalidArguments(
                handler=self._type,
                parameter=None,
                problem=f"{len(positional)} of its arguments have no name, and its parameters are not declared",
                remedy="pass arguments by name, or declare the parameters: app.remote_job(..., signature=...)",
            )
        return dict(named)

    def bind_item(self, call: Any) -> dict[str, Any]:
        """Return the arguments of one item of a `submit_many`, a mapping or an empty tuple or list.

        Raises `InvalidArguments` for other items.
        """
        if isinstance(call, Mapping):
            return self.bind((), call)
        return super().bind_item(call)

    def encode_bound(self, given: dict[str, Any]) -> bytes:
        """Encode arguments that are given by name.

        Raises `InvalidArguments` if a name is no string, if a value cannot be stored or the encoding would change
        it, or if a redacted argument is the text "[redacted]".
        """
        for name, value in given.items():
            self._require_text(name)
            self._require_unchanged(name, value)
        self._refuse_markers(given)
        return bytes(self._free_serializer.encode(given))

    def encode_some(self, given: Mapping[str, Any]) -> bytes:
        """Encode some of the arguments, by name, as `encode_bound` does."""
        return self.encode_bound(dict(given))

    def encode_many(self, calls: Iterable[Any]) -> list[bytes]:
        """Encode the arguments of many jobs, each a mapping of named arguments, as `encode_bound` does."""
        return [self.encode_bound(self.bind_item(call)) for call in calls]

    def _require_text(self, name: object) -> None:
        if not isinstance(name, str):
            raise InvalidArguments(
                handler=self._type,
                parameter=None,
                problem=f"the name of an argument is {name!r}, not a string",
            )

    def _require_unchanged(self, name: str, value: Any) -> None:
        remedy = "pass plain data: text, numbers, true, false, None, lists, and dicts with text as keys"
        shown = "it" if name in self._redacted else f"{value!r:.200}"
        try:
            decoded = self._free_serializer.decoder(Any).decode(bytes(self._free_serializer.encode(value)))
        except (TypeError, ValueError, OverflowError, RecursionError):
            problem = f"{shown} cannot be stored"
        else:
            change = None if _check is None else _check(value, decoded, name)
            if change is None:
                return
            problem = "the remote worker would get a changed value"
            if name not in self._redacted:
                problem = change.describe("the remote worker would get")
        raise InvalidArguments(handler=self._type, parameter=name, problem=problem, remedy=remedy)

    def key(self, given: Mapping[str, Any], names: Sequence[str]) -> str:
        """Return a key made of the arguments `names`; of all that are given, if `names` is empty."""
        return super().key(given, names or sorted(given))

    def decode(self, payload: bytes, codec: str) -> tuple[Sequence[Any], dict[str, Any]]:
        """Decode the stored arguments of a job; return an empty tuple and a dict of all arguments by name."""
        return (), dict(self.plain(payload, codec))

    def decoded(self, payload: bytes, codec: str, names: Iterable[str]) -> list[Any]:
        """Return the values of the stored arguments `names` of a job, without those that were not given."""
        plain = self.plain(payload, codec)
        return [plain[name] for name in names if isinstance(plain, dict) and name in plain]

    @property
    def names(self) -> tuple[str, ...]:
        """An empty tuple: the parameters are not declared."""
        return ()

    @property
    def required(self) -> tuple[str, ...]:
        """An empty tuple: no argument is required."""
        return ()

    def require_parameters(self, names: Sequence[str]) -> None:
        """Accept every name of a parameter, because the parameters are not declared."""

    def __str__(self) -> str:
        return f"{self._type}(**arguments)"
