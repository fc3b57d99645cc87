"""The types of ASGI applications, and of `app.asgi(auth=...)`, which says how callers are identified."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal, TypeAlias

from mainspring.security.permissions import Identity

AsgiMessage: TypeAlias = MutableMapping[str, Any]
AsgiScope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[AsgiMessage]]
Send: TypeAlias = Callable[[AsgiMessage], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

AuthFunction: TypeAlias = Callable[[AsgiScope], Identity | Awaitable[Identity | None] | None]
"""A function of the user's application: gets the ASGI scope of a request, and returns the identity of its caller,
or None if the caller is not admitted. It may be a coroutine function."""
Auth: TypeAlias = Literal["tokens"] | AuthFunction
