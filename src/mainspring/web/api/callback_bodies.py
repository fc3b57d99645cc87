"""Jobs that HTTP clients describe as a request, without a declaration in the code: `{"http": {"url": ...}}`.

They are jobs of the type `HTTP_TYPE`. A caller needs the scope `callback` to choose a URL or a secret, whatever
the endpoint: a submit, a schedule, an edit of a dead letter. The allow-list of the application applies to all.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from mainspring.callbacks.declaring import HTTP_TYPE
from mainspring.jobs.handlers import Handler
from mainspring.security.permissions import Identity, Scope


class HttpRequestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An HTTP request that a worker sends when the job is due."""

    url: Annotated[
        str,
        Meta(
            description="The URL. The allow-list of the application must allow it.",
            examples=["https://hooks.example.com/orders"],
        ),
    ]
    method: Literal["POST", "PUT", "PATCH", "DELETE", "GET", "HEAD"] = "POST"
    headers: Annotated[
        dict[str, str],
        Meta(description="Headers of the request. Lists do not show them. Some are dropped, such as `Host`."),
    ] = {}
    body: Annotated[
        msgspec.Raw,
        Meta(
            description="The body: a text is sent as it is, other values as JSON; null for no body.",
            extra_json_schema={"default": None},
        ),
    ] = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    secret: Annotated[
        str | None, Meta(description="The name of the secret that signs the request, as the application calls it.")
    ] = None
    keep_result: Annotated[
        bool, Meta(description="Whether the answer (status, some headers, start of the body) is kept as result.")
    ] = False

    def to_arguments(self) -> msgspec.Raw:
        """Return the arguments of a job of `HTTP_TYPE`, as JSON."""
        given: dict[str, Any] = {"url": self.url, "method": self.method, "body": self.body}
        if self.headers:
            given["headers"] = self.headers
        if self.secret is not None:
            given["secret"] = self.secret
        if self.keep_result:
            given["keep_result"] = True
        return msgspec.Raw(msgspec.json.encode(given))


def submit_scope(type_: str) -> Scope:
    """Return the scope that a submit of this job type needs: `callback` for `HTTP_TYPE`, else `submit`."""
    return Scope.CALLBACK if type_ == HTTP_TYPE else Scope.SUBMIT


def require_url_right(identity: Identity, handler: Handler, queue: str | None) -> None:
    """Raise `NotAllowed` if jobs of a handler have a URL as argument and the caller lacks the scope `callback`."""
    if handler.chooses_url:
        identity.require(Scope.CALLBACK, type=handler.name, queue=queue)
