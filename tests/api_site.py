"""An application with some handlers, and a client of its API that needs no server."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from mainspring import Mainspring, Unique
from mainspring.security.asgi_types import AsgiApp
from tests.asgi_client import Answer, request

JSON = ("content-type", "application/json")
NDJSON = ("content-type", "application/x-ndjson")


class ApiSite:
    """The API of an application. Without `token=`, a request has the token that may do everything."""

    def __init__(self, app: Mainspring) -> None:
        self.app = app
        self.asgi: AsgiApp = app.asgi(auth="tokens")
        self._made = 0
        self.admin = self.token("admin")

    def token(self, *scopes: str, **options: Any) -> str:
        """Make a token, and return its secret."""
        self._made += 1
        return self.app.tokens.create(self.last_name, scopes=scopes, **options).secret

    @property
    def last_name(self) -> str:
        """The name of the last token that was made."""
        return f"token {self._made}"

    def get(self, path: str, *, token: str | None = None) -> Answer:
        return request(self.asgi, f"/api/v1{path}", token=token or self.admin)

    def post(
        self,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        raw: bytes | None = None,
        content_type: tuple[str, str] = JSON,
        method: str = "POST",
    ) -> Answer:
        data = json.dumps({} if body is None else body).encode() if raw is None else raw
        return request(
            self.asgi,
            f"/api/v1{path}",
            method=method,
            token=token or self.admin,
            headers=[content_type],
            body=data,
        )

    def submit(self, type_: str = "shop.cancel_order", *, token: str | None = None, **options: Any) -> str:
        """Submit a job that is due in an hour, and return its id."""
        if type_ == "shop.cancel_order":
            options.setdefault("arguments", {"order_id": 42})
        if "at" not in options:
            options.setdefault("delay", 3600)
        answer = self.post("/jobs", {"type": type_, **options}, token=token)
        assert answer.status == 201, answer.body
        return str(answer.json["id"])

    def ids(self, query: str = "", *, token: str | None = None) -> list[str]:
        """Return the ids of a list of jobs."""
        answer = self.get(f"/jobs{query}", token=token)
        assert answer.status == 200, answer.body
        return [job["id"] for job in answer.json["jobs"]]


def add_handlers(app: Mainspring) -> None:
    """Register the handlers of a small shop."""

    @app.job(name="shop.cancel_order", queue="orders")
    def cancel_order(order_id: int, reason: str = "unpaid") -> dict[str, Any]:
        return {"canceled": order_id, "reason": reason}

    @app.job(name="shop.pay", queue="money", unique=Unique(by="order_id", on_conflict="raise"))
    def pay(order_id: int) -> None: ...

    @app.job(name="shop.remind", queue="mail")
    def remind(at: datetime, picture: bytes = b"") -> bytes:
        return picture

    @app.job(name="shop.anything", queue="orders")
    def anything(value: Any = None) -> Any:
        return value
