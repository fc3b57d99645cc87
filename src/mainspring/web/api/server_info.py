"""The endpoints about the API itself: its version with the rights of the caller, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from msgspec import Struct

from mainspring.web.api.endpoint import AnswerType, ApiAnswer, ApiCall, Endpoint
from mainspring.web.api.openapi import OpenApiDocument


class CallerView(Struct, frozen=True, kw_only=True):
    """The caller of a request, with its scopes, and the job types and queues that they apply to; null for all."""

    name: str
    scopes: list[str]
    types: list[str] | None
    queues: list[str] | None


class ServerView(Struct, frozen=True, kw_only=True):
    """The versions of the server and of the API, and the caller of the request."""

    name: str = "mainspring"
    version: str
    api: str = "v1"
    caller: CallerView


class ServerInfoEndpoints:
    """The endpoints that describe the server and the API."""

    def __init__(self) -> None:
        self._version = version("mainspring")
        self.document: OpenApiDocument | None = None

    async def root(self, call: ApiCall[Any, Any]) -> ApiAnswer:
        """Answer the versions of the server and the API, and the rights of the caller."""
        permissions = call.identity.permissions
        caller = CallerView(
            name=call.identity.name,
            scopes=sorted(permissions.scopes),
            types=None if permissions.types is None else sorted(permissions.types),
            queues=None if permissions.queues is None else sorted(permissions.queues),
        )
        return ApiAnswer(content=ServerView(version=self._version, caller=caller))

    async def openapi(self, call: ApiCall[Any, Any]) -> ApiAnswer:
        """Answer the OpenAPI document. It has no secrets, so every identified caller may read all of it."""
        assert self.document is not None
        return ApiAnswer(content=self.document.encode(call.request.scope.get("root_path", "")))


def endpoints(others: Sequence[Endpoint]) -> list[Endpoint]:
    """Return the declarations of the endpoints that describe the server and the API.

    `others` are the declarations of all other modules, which the OpenAPI document describes, too.
    """
    server = ServerInfoEndpoints()
    example = {
        "name": "mainspring",
        "version": "0.1.0",
        "api": "v1",
        "caller": {"name": "shop", "scopes": ["submit"], "types": ["shop.cancel_order"], "queues": None},
    }
    own = [
        Endpoint(
            name="get_server",
            method="GET",
            path="/",
            subject="server",
            summary="Read the version of the API, and the rights of the caller.",
            scopes=(),
            serve=server.root,
            answers={200: AnswerType(type=ServerView, description="The version and rights.", example=example)},
        ),
        Endpoint(
            name="get_openapi",
            method="GET",
            path="/openapi.json",
            subject="server",
            summary="Read the OpenAPI document.",
            scopes=(),
            serve=server.openapi,
            answers={
                200: AnswerType(
                    type=dict[str, Any],
                    description="The OpenAPI 3.1 document.",
                    example={"openapi": "3.1.0", "info": {"title": "Mainspring", "version": "0.1.0"}, "paths": {}},
                )
            },
        ),
    ]
    server.document = OpenApiDocument([*own, *others], version=version("mainspring"))
    return own
