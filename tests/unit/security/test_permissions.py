"""What a token allows: nothing but its scopes, for nothing but its types and queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import NotAllowed
from mainspring.security.permissions import (
    ALL_PERMISSIONS,
    MAX_NAMES,
    Identity,
    Permissions,
    Scope,
    parse_names,
    parse_scopes,
)

NAMES = st.sampled_from(["a", "b", "c"])
SETS = st.frozensets(NAMES) | st.none()
SCOPES = st.sampled_from(list(Scope))
OTHERS = [scope for scope in Scope if scope is not Scope.ADMIN]


@given(types=SETS, queues=SETS, scope=SCOPES, type_=NAMES | st.none(), queue=NAMES | st.none())
def test_a_token_that_may_submit_certain_types_can_do_nothing_else(
    types: frozenset[str] | None,
    queues: frozenset[str] | None,
    scope: Scope,
    type_: str | None,
    queue: str | None,
) -> None:
    permissions = Permissions(scopes=frozenset({Scope.SUBMIT}), types=types, queues=queues)
    is_named = (types is None or type_ in types) and (queues is None or queue in queues)
    assert permissions.allows(scope, type=type_, queue=queue) == (scope is Scope.SUBMIT and is_named)


@given(scopes=st.frozensets(st.sampled_from(OTHERS)), scope=SCOPES)
def test_no_scope_but_admin_includes_another(scopes: frozenset[Scope], scope: Scope) -> None:
    assert Permissions(scopes=scopes).allows(scope) == (scope in scopes)
    assert Permissions(scopes=scopes).has(scope) == (scope in scopes)


@given(scope=SCOPES, type_=NAMES | st.none(), queue=NAMES | st.none())
def test_admin_allows_everything_and_nothing_allows_nothing(
    scope: Scope, type_: str | None, queue: str | None
) -> None:
    assert ALL_PERMISSIONS.allows(scope, type=type_, queue=queue)
    assert not Permissions().allows(scope, type=type_, queue=queue)


def test_an_action_on_all_types_needs_a_token_without_a_restriction() -> None:
    permissions = Permissions(scopes=frozenset({Scope.READ}), types=frozenset({"a"}))
    assert permissions.has(Scope.READ)
    assert permissions.allows(Scope.READ, type="a")
    assert not permissions.allows(Scope.READ)
    assert not permissions.allows(Scope.READ, queue="a")


PERMISSIONS = st.builds(Permissions, scopes=st.frozensets(SCOPES), types=SETS, queues=SETS)


@given(permissions=PERMISSIONS, scope=SCOPES, type_=NAMES | st.none(), queue=NAMES | st.none())
def test_a_caller_may_do_what_its_permissions_allow(
    permissions: Permissions, scope: Scope, type_: str | None, queue: str | None
) -> None:
    caller = Identity(name="shop", permissions=permissions)
    is_allowed = permissions.allows(scope, type=type_, queue=queue)
    assert caller.allows(scope, type=type_, queue=queue) == is_allowed
    if is_allowed:
        caller.require(scope, type=type_, queue=queue)
        return
    with pytest.raises(NotAllowed) as caught:
        caller.require(scope, type=type_, queue=queue)
    error = caught.value
    assert (error.name, error.scope, error.type, error.queue) == ("shop", scope, type_, queue)


def test_an_identity_says_what_is_missing() -> None:
    caller = Identity(name="shop", permissions=Permissions(scopes=frozenset({Scope.READ})))
    caller.require(Scope.READ)
    with pytest.raises(NotAllowed, match=r"'shop'.*scope operate for type 'ship' and all queues") as caught:
        caller.require(Scope.OPERATE, type="ship")
    assert (caught.value.scope, caught.value.type, caught.value.queue) == ("operate", "ship", None)


def test_scopes_are_parsed() -> None:
    assert parse_scopes(["read", " Submit "]) == {Scope.READ, Scope.SUBMIT}
    assert parse_scopes("read") == {Scope.READ}
    with pytest.raises(ValueError, match=r"^'raed' is no scope; did you mean 'read'\?$"):
        parse_scopes(["raed"])
    known = "submit, read, work, operate, admin, callback"
    with pytest.raises(ValueError, match=f"^'fly' is no scope; the scopes are {known}$"):
        parse_scopes(["fly"])
    with pytest.raises(ValueError, match=f"^a token needs a scope: {known}$"):
        parse_scopes([])


def test_names_are_parsed() -> None:
    assert parse_names(["b", "a", "b"], "types") == frozenset({"a", "b"})
    assert parse_names(None, "types") is parse_names([], "types") is None
    for bad in ("", " ", "x" * 201):
        with pytest.raises(ValueError, match="is no name for queues"):
            parse_names([bad], "queues")
    with pytest.raises(TypeError, match="list of names"):
        parse_names("mail", "queues")
    most, longest = [str(number) for number in range(MAX_NAMES)], "x" * 200
    assert parse_names(most, "types") == frozenset(most)
    assert parse_names([longest], "types") == frozenset({longest})
    with pytest.raises(ValueError, match="the limit is 100"):
        parse_names(map(str, range(MAX_NAMES + 1)), "types")
