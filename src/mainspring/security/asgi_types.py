"""The types of ASGI applications, and of the value that says whom an application admits: `app.asgi(auth=...)`."""

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
"""A function of the application. It gets the ASGI scope of a request, and returns its caller, or None."""
Auth: TypeAlias = Literal["tokens"] | AuthFunction
