"""Finds values that a serializer changes: values that come back from the store with another type or another value.

An annotation restores the type of a value: `when: datetime` is stored as text and decoded as a datetime. Without
one (an unannotated parameter, `Any`, the items of a bare `dict` or `list`), a value keeps its type only if the
encoding knows the type. `check_for` returns a check for the places of an annotation that no type covers; the check
compares a value with its decoded form. A container with an annotation may be converted to the annotated type, so
a list may be passed for a `tuple`; the items that no annotation covers must be the same.

One change does happen under an annotation: JSON has no NaN, and stores null, which `float | None` accepts. The
check covers such unions, too.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.inspect import (
    AnyType,
    DataclassType,
    DictType,
    Field,
    FloatType,
    FrozenSetType,
    ListType,
    Metadata,
    NamedTupleType,
    NoneType,
    SetType,
    StructType,
    TupleType,
    Type,
    TypedDictType,
    UnionType,
    VarTupleType,
    type_info,
)

_CONTAINERS = frozenset({dict, list, tuple})
_SCALARS = frozenset({bool, int, str, type(None)})
_COLLECTIONS = (ListType, VarTupleType, SetType, FrozenSetType)
_CLASSES = (StructType, DataclassType, NamedTupleType, TypedDictType)
_MISSING = object()


class TypeChange(Struct, frozen=True):
    """A value that the serializer changes, and its place inside of the argument or result."""

    path: str
    """The place of the value, such as `order['total']`; the name of the parameter for a whole argument."""
    given: Any
    decoded: Any
    is_key: bool = False
    """Whether the value is a key of the dict at `path`."""

    def describe(self, receiver: str) -> str:
        """Describe the change. `receiver` says who gets the changed value, such as "the handler would get"."""
        place = f"a key of {self.path}" if self.is_key else self.path
        return f"{place} is {_shown(self.given)}, and {receiver} {_shown(self.decoded)}"


Check: TypeAlias = Callable[[Any, Any, str], TypeChange | None]
"""Compares a given value with its decoded form, and returns the first change; None if there is none.

The string is the place of the value."""


def _shown(value: Any) -> str:
    return "None" if value is None else f"{value!r:.100} ({type(value).__qualname__})"


def check_for(annotation: Any) -> Check | None:
    """Return the check for values of an annotation; None if the annotation gives the type of every part of a
    value, so that no check is needed.
    """
    kind = type_info(annotation)
    return _Checks().of(kind) if _is_open(kind) else None


def _is_open(kind: Type, seen: set[type] | None = None, *, ignores_nan: bool = False) -> bool:
    """Return whether a type has parts, at any depth, whose values no annotation restores. `seen` has visited
    classes.

    With `ignores_nan`, unions of float and None, where JSON loses NaN, do not count.
    """
    if isinstance(kind, AnyType):
        return True
    if isinstance(kind, UnionType) and _loses_nan(kind) and not ignores_nan:
        return True
    seen = set() if seen is None else seen
    if isinstance(kind, _CLASSES):
        if kind.cls in seen:
            return False
        seen.add(kind.cls)
    return any(_is_open(part, seen, ignores_nan=ignores_nan) for part in _parts_of(kind))


def _parts_of(kind: Type) -> Iterable[Type]:
    """Return the types of the items, fields or members of a type."""
    if isinstance(kind, UnionType):
        return kind.types
    if isinstance(kind, Metadata):
        return (kind.type,)
    if isinstance(kind, DictType):
        return (kind.key_type, kind.value_type)
    if isinstance(kind, _COLLECTIONS):
        return (kind.item_type,)
    if isinstance(kind, TupleType):
        return kind.item_types
    return [field.type for field in kind.fields] if isinstance(kind, _CLASSES) else ()


def _loses_nan(kind: UnionType) -> bool:
    return any(isinstance(one, FloatType) for one in kind.types) and any(
        isinstance(one, NoneType) for one in kind.types
    )


class _Checks:
    """Makes the checks of one annotation. Classes may contain each other, so each class has one check."""

    def __init__(self) -> None:
        self._of_classes: dict[type, _ClassCheck] = {}

    def of(self, kind: Type) -> Check:
        if isinstance(kind, AnyType):
            return find_change
        if isinstance(kind, Metadata):
            return self.of(kind.type)
        if not _is_open(kind):
            return _unchecked
        if isinstance(kind, UnionType):
            return self._of_union(kind)
        if isinstance(kind, DictType):
            return self._of_dict(kind)
        if isinstance(kind, SetType | FrozenSetType):
            return _check_set
        if isinstance(kind, ListType | VarTupleType):
            if isinstance(kind.item_type, AnyType):
                return _check_any_items
            may_skip_equal = not _is_open(kind.item_type, ignores_nan=True)
            return _item_check(self.of(kind.item_type), may_skip_equal=may_skip_equal)
        if isinstance(kind, TupleType):
            return _tuple_check([self.of(one) for one in kind.item_types])
        assert isinstance(kind, _CLASSES)
        return self._of_class(kind.cls, kind.fields)

    def _of_class(self, cls: type, fields: Iterable[Field]) -> Check:
        check = self._of_classes.get(cls)
        if check is None:
            check = self._of_classes[cls] = _ClassCheck()
            check.fields = [
                (field.name, field.encode_name, self.of(field.type)) for field in fields if _is_open(field.type)
            ]
        return check

    def _of_dict(self, kind: DictType) -> Check:
        has_any_keys = isinstance(kind.key_type, AnyType)
        if has_any_keys and isinstance(kind.value_type, AnyType):
            return _check_any_dict
        return _dict_check(_check_key if has_any_keys else None, self.of(kind.value_type))

    def _of_union(self, kind: UnionType) -> Check:
        if any(isinstance(one, AnyType) for one in kind.types):
            return find_change
        loses_nan = _loses_nan(kind)
        checks = [(_class_of(one), self.of(one)) for one in kind.types if _is_open(one)]

        def check(given: Any, decoded: Any, path: str) -> TypeChange | None:
            if decoded is None:
                return None if given is None or not loses_nan else TypeChange(path, given, decoded)
            for cls, one in checks:
                if isinstance(decoded, cls):
                    return one(given, decoded, path)
            return None

        return check


def _class_of(kind: Type) -> type:
    classes = {ListType: list, VarTupleType: tuple, TupleType: tuple, SetType: set, FrozenSetType: frozenset}
    if isinstance(kind, Metadata):
        return _class_of(kind.type)
    if isinstance(kind, DictType | TypedDictType):
        return dict
    return kind.cls if isinstance(kind, _CLASSES) else classes.get(type(kind), object)


def _unchecked(_given: Any, _decoded: Any, _path: str) -> None:
    return None


class _ClassCheck:
    """Compares the fields of a value with those of its decoded form; returns the first change by the serializer.

    The value is a dataclass, msgspec struct, named tuple or typed dict, or a dict that is passed for one of these.
    """

    def __init__(self) -> None:
        self.fields: list[tuple[str, str, Check]] = []

    def __call__(self, given: Any, decoded: Any, path: str) -> TypeChange | None:
        for name, encoded_name, check in self.fields:
            value, other = _field_of(given, encoded_name, name), _field_of(decoded, name, name)
            if value is _MISSING or other is _MISSING:
                continue
            change = check(value, other, f"{path}.{name}")
            if change is not None:
                return change
        return None


def _field_of(value: Any, key: str, name: str) -> Any:
    return value.get(key, _MISSING) if isinstance(value, Mapping) else getattr(value, name, _MISSING)


def _check_any_items(given: Any, decoded: Any, path: str) -> TypeChange | None:
    return find_change(list(given), list(decoded), path) if isinstance(given, list | tuple) else None


def _check_any_dict(given: Any, decoded: Any, path: str) -> TypeChange | None:
    if not isinstance(given, Mapping):
        return None
    return find_change(given if type(given) is dict else dict(given), decoded, path)


def _check_set(given: Any, decoded: Any, path: str) -> TypeChange | None:
    if not isinstance(given, set | frozenset | list | tuple):
        return None
    known = {(type(item), item) for item in decoded}
    for item in given:
        if (type(item), item) not in known:
            return TypeChange(f"{path}[...]", item, next(iter(decoded), None))
    return None


def _item_check(check: Check, *, may_skip_equal: bool) -> Check:
    def check_items(given: Any, decoded: Any, path: str) -> TypeChange | None:
        if not isinstance(given, list | tuple) or (may_skip_equal and given == decoded):
            return None
        for place, (item, other) in enumerate(zip(given, decoded, strict=False)):
            change = check(item, other, f"{path}[{place}]")
            if change is not None:
                return change
        return None

    return check_items


def _tuple_check(checks: list[Check]) -> Check:
    def check_items(given: Any, decoded: Any, path: str) -> TypeChange | None:
        if not isinstance(given, list | tuple):
            return None
        for place, (check, item, other) in enumerate(zip(checks, given, decoded, strict=False)):
            change = check(item, other, f"{path}[{place}]")
            if change is not None:
                return change
        return None

    return check_items


def _dict_check(check_key: Check | None, check: Check) -> Check:
    def check_items(given: Any, decoded: Any, path: str) -> TypeChange | None:
        if not isinstance(given, Mapping):
            return None
        for (key, value), (other_key, other) in zip(given.items(), decoded.items(), strict=False):
            change = None if check_key is None else check_key(key, other_key, path)
            change = change or check(value, decoded.get(key, other), f"{path}[{key!r}]")
            if change is not None:
                return change
        return None

    return check_items


def _check_key(given: Any, decoded: Any, path: str) -> TypeChange | None:
    is_same = type(given) is type(decoded) and given == decoded
    return None if is_same else TypeChange(path, given, decoded, is_key=True)


# -- values without an annotation


def find_change(given: Any, decoded: Any, path: str = "") -> TypeChange | None:
    """Compare a value with its decoded form; return the first change of a type or value, None if there is none."""
    kind = type(given)
    if kind in _SCALARS and kind is type(decoded) and given == decoded:
        return None
    return None if _is_same(given, decoded) else _locate(given, decoded, path)


def _is_same(given: Any, decoded: Any) -> bool:
    """Return whether two values are equal and the given one consists of exact builtin types; both tests run in C.

    An equal value can have another type: an enum member and its value, a subclass of dict and a dict. `marshal`
    refuses both. It returns False for NaN, which is not equal to itself, and for types that `marshal` does not
    know; then `_locate` compares the types one by one. It overlooks a bytearray in a container that arrives as
    bytes.
    """
    if type(given) is not type(decoded) or given != decoded:
        return False
    try:
        marshal.dumps(given)
    except ValueError:
        return False
    return True


def _locate(given: Any, decoded: Any, path: str) -> TypeChange | None:
    stack = [(given, decoded, path)]
    while stack:
        one, other, at = stack.pop()
        if isinstance(one, msgspec.Raw):  # the caller has encoded it
            continue
        if type(one) is not type(other):
            return TypeChange(at, one, other)
        if type(one) is dict:
            change = _changed_key(one, other, at)
            if change is not None:
                return change
            stack.extend((one[key], other[key], f"{at}[{key!r}]") for key in reversed(one))
        elif type(one) in _CONTAINERS:
            if len(one) != len(other):
                return TypeChange(at, one, other)
            pairs = list(enumerate(zip(one, other, strict=True)))
            stack.extend((item, its, f"{at}[{place}]") for place, (item, its) in reversed(pairs))
        elif one != other and not (one != one and other != other):  # noqa: PLR0124 - NaN
            return TypeChange(at, one, other)
    return None


def _changed_key(given: dict[Any, Any], decoded: dict[Any, Any], path: str) -> TypeChange | None:
    known = {(type(key), key) for key in decoded}
    for key, other in zip(given, decoded, strict=False):
        if (type(key), key) not in known:
            return TypeChange(path, key, other, is_key=True)
    return None if len(given) == len(decoded) else TypeChange(path, given, decoded)
