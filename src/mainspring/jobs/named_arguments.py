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
    """Return whether a function takes any named arguments and declares none."""
    return [each.kind for each in signature(function).parameters.values()] == [Parameter.VAR_KEYWORD]


class NamedArguments(Arguments):
    """Encodes arguments by name, without a signature."""

    def __init__(
        self, name: str, function: Callable[..., Any], serializer: Serializer, redacted: Sequence[str] = ()
    ) -> None:
        self._type = name
        self._free_serializer = serializer
        super().__init__(name, function, serializer, redacted)

    def bind(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name; refuse positional ones, because the parameters have no order."""
        if positional:
            raise InvalidArguments(
                handler=self._type,
                parameter=None,
                problem=f"{len(positional)} of its arguments have no name, and its parameters are not declared",
                remedy="pass arguments by name, or declare the parameters: app.remote_job(..., signature=...)",
            )
        return dict(named)

    def bind_item(self, call: Any) -> dict[str, Any]:
        """Bind the arguments of one item of a `submit_many`."""
        if isinstance(call, Mapping):
            return self.bind((), call)
        return super().bind_item(call)

    def encode_bound(self, given: dict[str, Any]) -> bytes:
        """Encode arguments by name. `InvalidArguments` names an argument that the encoding would change."""
        for name, value in given.items():
            self._require_text(name)
            self._require_unchanged(name, value)
        self._refuse_markers(given)
        return bytes(self._free_serializer.encode(given))

    def encode_some(self, given: Mapping[str, Any]) -> bytes:
        """Encode some of the arguments, by name."""
        return self.encode_bound(dict(given))

    def encode_many(self, calls: Iterable[Any]) -> list[bytes]:
        """Encode the arguments of many calls, each a dict of named ones."""
        return [self.encode_bound(self.bind_item(call)) for call in calls]

    def _require_text(self, name: object) -> None:
        if not isinstance(name, str):
            raise InvalidArguments(
                handler=self._type,
                parameter=None,
                problem=f"the name of an argument is {name!r}, which is not a string",
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
        """Return a key made of some arguments; of all that are given, if no names are."""
        return super().key(given, names or sorted(given))

    def decode(self, payload: bytes, codec: str) -> tuple[Sequence[Any], dict[str, Any]]:
        """Decode the stored arguments of a job."""
        return (), dict(self.plain(payload, codec))

    def decoded(self, payload: bytes, codec: str, names: Iterable[str]) -> list[Any]:
        """Return some of the stored arguments of a job."""
        plain = self.plain(payload, codec)
        return [plain[name] for name in names if isinstance(plain, dict) and name in plain]

    @property
    def names(self) -> tuple[str, ...]:
        """No names: the parameters are not declared."""
        return ()

    @property
    def required(self) -> tuple[str, ...]:
        """No names: every argument may be left out."""
        return ()

    def require_parameters(self, names: Sequence[str]) -> None:
        """Accept every name, because the parameters are not declared."""

    def __str__(self) -> str:
        return f"{self._type}(**arguments)"
