"""The handlers of callbacks: of `app.http_job(...)`, and of requests that HTTP clients describe themselves.

A callback is a job type with a handler of ours. Its arguments are those of the request: a body and headers for a
declared URL, and everything for `HTTP_TYPE`. They are checked by the policy when they are encoded, so that every
way to store a job checks them: submits, schedules, follow-ups, edits of dead letters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from mainspring.callbacks.allow_list import parse_url
from mainspring.callbacks.answers import ReceiverGone
from mainspring.callbacks.delivery import CallbackTarget, Deliverer, require_job
from mainspring.callbacks.requests import check_body, check_headers, check_method
from mainspring.errors import CallbackRefused, InvalidArguments
from mainspring.jobs.arguments import Arguments
from mainspring.jobs.handle import JobHandle
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler
from mainspring.jobs.ids import require_id
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.policies import Concurrency
from mainspring.jobs.retry import Retry
from mainspring.jobs.serializers import Serializer
from mainspring.runners.validation import require_instance

HTTP_TYPE = "mainspring.http"
"""The type of jobs whose URL is an argument. HTTP clients submit them as `{"http": {...}}`."""
CALLBACK_RETRY = Retry(max_attempts=10, base=5, factor=4, max_delay=timedelta(hours=6), jitter=0.2)
"""The default retry policy of callbacks: ten attempts within about twenty hours, for receivers that are down."""
FINAL = (CallbackRefused, InvalidArguments, ReceiverGone)
"""The exceptions after which a callback is not retried: its job becomes a dead letter."""


class CallbackArguments(Arguments):
    """Encodes the arguments of a callback, and checks the request that they make.

    Raises `CallbackRefused` if the policy does not allow the request, and `InvalidArguments` for other faults.
    """

    def __init__(self, delivery: DeclaredDelivery | FreeDelivery, serializer: Serializer, redacted: Any) -> None:
        super().__init__(delivery.name, delivery, serializer, redacted)
        self._delivery = delivery

    def encode_bound(self, given: dict[str, Any]) -> bytes:
        payload = super().encode_bound(given)
        self._delivery.check(given)
        return payload

    def encode_some(self, given: Mapping[str, Any]) -> bytes:
        payload = super().encode_some(given)
        self._delivery.check(given)
        return payload

    def encode_many(self, calls: Iterable[Any]) -> list[bytes]:
        items = list(calls)
        payloads = super().encode_many(items)  # its errors name the item
        for item in items:
            self._delivery.check(self.bind_item(item))
        return payloads

    def limit_key(self, given: Mapping[str, Any], names: Collection[str]) -> str:
        if tuple(names) != ("url",):
            return super().limit_key(given, tuple(names))
        try:
            return f"host={parse_url(given.get('url')).origin}"
        except CallbackRefused:  # a job of an earlier version: it becomes a dead letter
            return "host="


class CallbackHandler(Handler):
    """The handler of a callback: it sends an HTTP request. Callbacks have slots of their own: see `LeaseTable`."""

    is_callback = True

    def __init__(
        self, delivery: DeclaredDelivery | FreeDelivery, options: HandlerOptions, serializer: Serializer
    ) -> None:
        super().__init__(delivery.name, delivery, options, serializer)
        self.arguments = CallbackArguments(delivery, serializer, self.redacted)
        self._deliverer = delivery.deliverer
        self.chooses_url = isinstance(delivery, FreeDelivery)

    @property
    def requests_at_once(self) -> int:
        return self._deliverer.most_requests()


class DeclaredDelivery:
    """The handler function of a callback whose URL `app.http_job` declares."""

    __slots__ = ("_place", "_target", "deliverer", "name")

    def __init__(self, name: str, deliverer: Deliverer, target: CallbackTarget, place: str) -> None:
        self.name = name
        self.deliverer = deliverer
        self._target = target
        self._place = place

    @property
    def url(self) -> str:
        """The declared URL, with its query."""
        return self._target.url.text

    @property
    def method(self) -> str:
        """The declared HTTP method, in upper case."""
        return self._target.method

    async def __call__(self, body: Any = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """Send the request of the running job to the declared URL; return a successful answer as the job's result.

        Raises what `check` and `Deliverer.deliver` raise, and `RuntimeError` if no job runs here.
        """
        require_job(self.name)
        self.check({"body": body, "headers": headers})
        url = self.deliverer.policy.check(self._target.url.text)
        own = (*self._target.headers, headers or {})
        return await self.deliverer.deliver(replace(self._target, url=url, headers=own, body=body))

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise `CallbackRefused` if the declared URL is not allowed, `InvalidArguments` for wrong arguments."""
        self.deliverer.policy.check(self._target.url.text)
        check_headers(self.name, given.get("headers"))
        check_body(self.name, self._target.method, given.get("body"))

    def __repr__(self) -> str:  # two declarations are the same if they are at the same place
        return f"app.http_job in {self._place}"


class FreeDelivery:
    """The handler function of `HTTP_TYPE`: callbacks whose URL is an argument of the job."""

    __slots__ = ("deliverer", "name")

    def __init__(self, deliverer: Deliverer) -> None:
        self.name = HTTP_TYPE
        self.deliverer = deliverer

    async def __call__(  # noqa: PLR0917 - the arguments of a job
        self,
        url: str,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        body: Any = None,
        secret: str | None = None,
        keep_result: bool = False,  # noqa: FBT001, FBT002 - an argument of a job
    ) -> dict[str, Any] | None:
        """Send the request of the running job to `url`; return a successful answer if `keep_result`, else None.

        Raises what `check` and `Deliverer.deliver` raise, and `RuntimeError` if no job runs here.
        """
        require_job(self.name)
        self.check({"url": url, "method": method, "headers": headers, "body": body, "secret": secret})
        target = CallbackTarget(
            url=self.deliverer.policy.check(url),
            method=check_method(self.name, method),
            headers=(headers or {},),
            body=body,
            secret=secret,
            names_url=True,
        )
        answer = await self.deliverer.deliver(target)
        return answer if keep_result else None

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise `CallbackRefused` if the URL or the secret is not allowed, `InvalidArguments` for other faults."""
        if "url" not in given:  # a follow-up without a bound URL: the result of the first job would be the URL
            raise CallbackRefused(
                url="the result of another job",
                reason="it is not known before the job runs",
                remedy="bind the URL: job.bind(url=...)",
            )
        policy = self.deliverer.policy
        url = policy.check(given["url"])
        method = check_method(self.name, given.get("method", "POST"))
        check_headers(self.name, given.get("headers"))
        check_body(self.name, method, given.get("body"))
        if given.get("secret") is not None:
            policy.secret(given["secret"], url)


class HttpJobFunction(JobFunction[..., dict[str, Any] | None]):
    """A declared callback: `app.http_job` returns it. `submit` stores a job, and a worker sends the request."""

    def submit(
        self, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> JobHandle[dict[str, Any] | None]:
        """Store a job and return its handle. The job is durable when this call returns.

        - `body`: the body of the request: a text is sent as it is, other data as JSON; None for no body
        - `headers`: headers of this request, beside those of the declaration
        """
        return super().submit(**_given(body, headers))

    async def submit_async(
        self, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> JobHandle[dict[str, Any] | None]:
        """Store a job as `submit` does, without blocking the event loop."""
        return await super().submit_async(**_given(body, headers))

    def __repr__(self) -> str:
        return f"<HttpJobFunction {self.name}>"


def _given(body: Any, headers: Mapping[str, str] | None) -> dict[str, Any]:
    given = {"body": body, "headers": None if headers is None else dict(headers)}
    return {name: value for name, value in given.items() if value is not None}


def make_free_handler(deliverer: Deliverer, serializer: Serializer) -> CallbackHandler:
    """Make the handler of `HTTP_TYPE`. The headers of its jobs are redacted: they may have credentials."""
    policy = deliverer.policy
    options = HandlerOptions(
        timeout=policy.timeout,
        retry=_giving_up(CALLBACK_RETRY),
        concurrency=None if policy.per_host is None else Concurrency(policy.per_host, by="url"),
        redact=("headers",),
    )
    return CallbackHandler(FreeDelivery(deliverer), options, serializer)


def make_declared_handler(
    name: str,
    deliverer: Deliverer,
    serializer: Serializer,
    *,
    url: str,
    method: str,
    headers: Mapping[str, str] | None,
    secret: str | None,
    success: Collection[int] | None,
    stop: Collection[int],
    place: str,
    **options: Any,
) -> tuple[CallbackHandler, DeclaredDelivery]:
    """Make the handler for a call of `app.http_job`, and the function that it calls to send the request.

    `place` is the file and line of that call. Raises an error for a wrong URL or option.
    """
    policy = deliverer.policy
    target = CallbackTarget(
        url=policy.check(url),
        method=check_method(name, method),
        headers=(dict(headers or {}),),
        secret=secret,
        success=None if success is None else _codes(success, "success"),
        stop=_codes(stop, "stop"),
        at_most_once=options["at_most_once"],
        at_once=getattr(options["concurrency"], "n", 0),
    )
    check_headers(name, headers)
    if secret is not None:
        policy.secret(secret, target.url)
    if options["concurrency"] is None and policy.per_host is not None:
        options["concurrency"] = Concurrency(policy.per_host)
    if options["timeout"] is None:
        options["timeout"] = policy.timeout
    retry = options["retry"]
    if retry is None:
        retry = replace(CALLBACK_RETRY, max_attempts=1) if target.at_most_once else CALLBACK_RETRY
    options["retry"] = _giving_up(require_instance(retry, Retry, "retry", "Retry(max_attempts=3)"))
    delivery = DeclaredDelivery(require_id(name, "name"), deliverer, target, place)
    return CallbackHandler(delivery, HandlerOptions(**options), serializer), delivery


def _giving_up(retry: Retry) -> Retry:
    return replace(retry, give_up_on=(*retry.give_up_on, *FINAL))


def _codes(given: Collection[int], option: str) -> frozenset[int]:
    codes = frozenset(given)
    if not all(type(code) is int and 100 <= code <= 599 for code in codes):
        raise ValueError(f"{option} must be codes of HTTP answers such as (200, 409), got {given!r}")
    return codes
