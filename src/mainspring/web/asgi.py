"""The ASGI application of `app.asgi()`: the dashboard, probes, metrics and the API.

It needs no lifespan protocol: it opens the store at the first request that needs it, and so it can be mounted into
any other ASGI application, under any path. The code that made the `Mainspring` closes it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainspring.errors import EngineUnavailable, MainspringError
from mainspring.security.asgi_types import AsgiApp, Auth
from mainspring.security.http_limits import HttpLimits
from mainspring.security.permissions import Identity, Scope
from mainspring.security.tokens import hide_tokens
from mainspring.web.api.endpoint import API
from mainspring.web.api.router import ApiRouter, JsonResponse
from mainspring.web.api.routes import all_endpoints
from mainspring.web.credentials import Authenticator, ClosedAuthenticator, TokenAuthenticator, make_authenticator
from mainspring.web.dashboard.dashboard import Dashboard
from mainspring.web.event_hub import EventHub
from mainspring.web.guard import CALLER, REQUEST_ID, RequestGuard
from mainspring.web.host_names import HostRule
from mainspring.web.metrics import IDENTIFY_SECONDS, MetricsPage
from mainspring.web.probes import HealthSource, ProbeAnswer, Probes
from mainspring.web.problems import FAILURE, MEDIA_TYPE, Problem, Refused, problem_of

if TYPE_CHECKING:
    from mainspring.app import Mainspring

logger = logging.getLogger("mainspring.http")


class AnyPath(PathConvertor):
    """A path of the API. It may contain line feeds, which Starlette's own convertor does not accept."""

    regex = r"[\s\S]*"


register_url_convertor("mainspring_path", AnyPath())


class HttpApp:
    """The HTTP routes of one application: probes, metrics, the API and the dashboard."""

    def __init__(
        self,
        app: Mainspring,
        authenticator: Authenticator,
        *,
        worker: HealthSource | None = None,
        store_metrics: bool = False,
        limits: HttpLimits | None = None,
        read_only: bool = False,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._probes = Probes(app, worker=worker)
        self._metrics = MetricsPage(app, store=store_metrics)
        self._api = ApiRouter(app, authenticator, all_endpoints(app), limits=limits)
        self.dashboard = Dashboard(app, authenticator, self._api, limits=limits, is_read_only=read_only)

    def routes(self) -> list[Route]:
        """Return the routes, in the order in which Starlette matches them; the dashboard gets all other paths."""
        return [
            Route("/healthz", self.healthz, methods=["GET"]),
            Route("/readyz", self.readyz, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route(API, self._api),
            Route(f"{API}/{{path:mainspring_path}}", self._api),
            Route("/{path:mainspring_path}", self.dashboard),
        ]

    async def identify(self, request: Request) -> Identity:
        """Return the caller of a request, and keep the caller's name for the log.

        Raises `Refused` or `TokenInvalid` if the caller cannot be identified.
        """
        identity = await self._authenticator.identify(request.scope)
        request.scope[CALLER] = identity.name
        return identity

    async def healthz(self, _request: Request) -> Response:
        """Answer 200 if the process is alive, and 503 if it must be restarted."""
        return _probe_response(await self._probes.live())

    async def readyz(self, _request: Request) -> Response:
        """Answer 200 if the process can do its work, and 503 if it cannot at present."""
        return _probe_response(await self._probes.ready())

    async def metrics(self, request: Request) -> Response:
        """Answer a scrape of Prometheus with the metrics.

        If the store does not answer, the page says so after three seconds at most.

        Raises `NotAllowed` unless the caller has the scope `read` for all types and queues, which metrics concern.
        """
        authenticator = self._authenticator
        if isinstance(authenticator, TokenAuthenticator):
            identity = await authenticator.identify_within(IDENTIFY_SECONDS, request.scope)
            request.scope[CALLER] = identity.name
        else:
            identity = await self.identify(request)
        identity.require(Scope.READ)
        page, content_type = await self._metrics.make(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})


def _probe_response(answer: ProbeAnswer) -> Response:
    return JsonResponse(answer, status_code=200 if answer.is_ok else 503)


async def _on_library_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MainspringError)
    if isinstance(error, EngineUnavailable):  # the answer does not say why
        logger.error("request %s: the store cannot be used: %s", request.scope.get(REQUEST_ID), error)
    problem = problem_of(error)
    if problem is FAILURE:
        logger.error("request %s failed: %s", request.scope.get(REQUEST_ID), error, exc_info=error)
    return _problem_response(request, problem)


async def _on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _problem_response(request, error.problem)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    details = {
        404: ("not-found", f"there is no page {hide_tokens(request.url.path)[:200]!r}; the API is at {API}/"),
        405: ("method", f"this path does not allow {request.method}; see the header Allow"),
    }
    name, detail = details.get(status, ("http-error", str(error.detail)))
    headers = dict(error.headers or {})
    return _problem_response(request, Problem(status=status, type=name, detail=detail, headers=headers))


async def _on_failure(request: Request, _error: Exception) -> Response:
    return _problem_response(request, FAILURE)  # Starlette raises the error again, and the guard logs it


def _problem_response(request: Request, problem: Problem) -> Response:
    return Response(
        problem.body(request.scope.get(REQUEST_ID)),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers=dict(problem.headers),
    )


def build(
    app: Mainspring,
    authenticator: Authenticator,
    *,
    hosts: HostRule | None = None,
    limits: HttpLimits | None = None,
    worker: HealthSource | None = None,
    store_metrics: bool = False,
    read_only: bool = False,
) -> AsgiApp:
    """Build the ASGI application of a `Mainspring`, with its guard. The options are those of `app.asgi()`.

    `worker` tells the health of a worker in the same process; None if there is none.
    """
    limits = limits or HttpLimits()
    http = HttpApp(
        app, authenticator, worker=worker, store_metrics=store_metrics, limits=limits, read_only=read_only
    )
    event_hub = EventHub(app, limits=limits)

    def end_streams() -> None:
        event_hub.close()
        http.dashboard.streams.close()
        if app.is_open:
            app.manager().remote_workers.wake()  # claims that wait see that the server stops

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        event_hub.open()
        http.dashboard.streams.open()
        yield
        end_streams()
        await authenticator.flush()

    starlette = Starlette(
        routes=http.routes(),
        lifespan=lifespan,
        exception_handlers={
            HTTPException: _on_http_error,
            MainspringError: _on_library_error,
            Refused: _on_refused,
            Exception: _on_failure,
        },
    )
    starlette.router.redirect_slashes = False
    starlette.state.event_hub = event_hub
    starlette.state.authenticator = authenticator
    starlette.state.dashboard = http.dashboard
    return RequestGuard(
        starlette,
        limits=limits,
        hosts=hosts,
        end_streams=end_streams,
        read_only=read_only,
        is_closed=isinstance(authenticator, ClosedAuthenticator),
    )


def make_asgi(
    app: Mainspring,
    *,
    auth: Auth | None = None,
    hosts: Iterable[str] | None = None,
    store_metrics: bool = False,
    limits: HttpLimits | None = None,
    read_only: bool = False,
) -> AsgiApp:
    """Make the ASGI application that `app.asgi()` returns. The options are described there."""
    if isinstance(hosts, str):
        raise TypeError(f"hosts must be a list of names, got {hosts!r}; write hosts=[{hosts!r}]")
    rule = None if hosts is None else HostRule(hosts)
    return build(
        app,
        make_authenticator(app, auth),
        hosts=rule,
        limits=limits,
        store_metrics=store_metrics,
        read_only=read_only,
    )
