"""The calls of an application about callbacks: `app.http_job(...)`, `app.resume_callbacks(...)`.

Applications without callbacks import nothing else of this package.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from mainspring.clock import Clock, Duration
from mainspring.jobs.handle import ManagerProvider
from mainspring.jobs.handler_options import FollowingJob
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.off_loop import OffLoop, async_twin
from mainspring.jobs.policies import Concurrency, Rate, Unique
from mainspring.jobs.retry import Retry
from mainspring.jobs.serializers import Serializer
from mainspring.jobs.worker_hooks import WorkerHooks
from mainspring.runners.task import Priority
from mainspring.runners.validation import require_instance

if TYPE_CHECKING:
    from mainspring.callbacks.declaring import HttpJobFunction
    from mainspring.callbacks.delivery import Deliverer
    from mainspring.callbacks.policy import CallbackPolicy
    from mainspring.jobs.paused_receivers import CallbackPause


class HttpJobs(ABC):
    """The base class of `Mainspring` with the calls that declare callbacks, and that list and lift pauses."""

    registry: HandlerRegistry
    serializer: Serializer
    worker_hooks: WorkerHooks
    callbacks: CallbackPolicy | None
    _off_loop: OffLoop

    def _use_callbacks(self, policy: CallbackPolicy | None, clock: Clock) -> None:
        """Set the policy of callbacks, and register the handler of `HTTP_TYPE`.

        A worker that starts then loads the HTTP client. With None, only record that no callbacks are allowed.
        """
        self.callbacks = policy
        self._deliverer: Deliverer | None = None
        if policy is None:
            return
        from mainspring.callbacks.declaring import make_free_handler  # noqa: PLC0415 - see the module
        from mainspring.callbacks.delivery import Deliverer  # noqa: PLC0415
        from mainspring.callbacks.policy import CallbackPolicy  # noqa: PLC0415

        require_instance(policy, CallbackPolicy, "callbacks", "CallbackPolicy(allow=['https://example.com/*'])")
        self._deliverer = Deliverer(policy, clock, "Mainspring", self._source)
        self.worker_hooks.add_start(self._deliverer.load)
        self.registry.add(make_free_handler(self._deliverer, self.serializer))

    def http_job(
        self,
        name: str,
        *,
        url: str,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        secret: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        success: Collection[int] | None = None,
        stop: Collection[int] = (),
        keep_result: bool | Duration = False,
        queue: str = "default",
        priority: Priority = Priority.USER_VISIBLE,
        concurrency: Concurrency | None = None,
        rate: Rate | None = None,
        unique: str | Unique | None = None,
        expires: Duration | None = None,
        then: FollowingJob | None = None,
        at_most_once: bool = False,
        redact: str | tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
    ) -> HttpJobFunction:
        """Declare a callback, a job that is an HTTP request: `app.http_job("paid", url="https://…")`.

        `submit(body=..., headers=...)` stores a job, and a worker sends the request when it is due. The URL must
        be in the allow-list of `Mainspring(callbacks=CallbackPolicy(allow=[...]))`.

        - `name`: the job type
        - `url`: the URL, which is checked now and before each request
        - `method`: `"POST"`, `"PUT"`, `"PATCH"`, `"DELETE"`, `"GET"` or `"HEAD"`
        - `headers`: headers of every request; put credentials here, and not into jobs
        - `secret`: the name of the secret that signs the requests, one of `CallbackPolicy(secrets=...)`
        - `retry`: how often and after which delays a request is repeated; None for ten attempts within about
          twenty hours
        - `timeout`: how long a request may take; None for that of the policy
        - `success`: the codes that complete a job; None for 200 to 299
        - `stop`: codes that make a dead letter without further attempts, beside 410
        - `keep_result`: whether the answer (status, some headers, start of the body) is stored as the result, or
          for how long
        - `queue`: the queue of the jobs
        - `priority`: how urgent the jobs are
        - `concurrency`: how many requests may be in flight at once, over all workers; None for `per_host` of the
          policy
        - `rate`: how many requests may start within a time, over all workers
        - `unique`: a key, or a `Unique`: at most one job for each key
        - `expires`: how long after its due time a request may still be sent
        - `then`: the follow-up job, which gets the answer
        - `at_most_once`: whether a request is sent at most once, without retries
        - `redact`: `"body"` or `"headers"`, if their values must not be shown
        - `aliases`: earlier names of the job type
        """
        from mainspring.callbacks.declaring import (  # noqa: PLC0415 - see the module
            HttpJobFunction,
            make_declared_handler,
        )
        from mainspring.callbacks.policy import refuse_without_policy  # noqa: PLC0415

        if self._deliverer is None:
            raise refuse_without_policy(url)
        caller = sys._getframe(1)
        handler, delivery = make_declared_handler(
            name,
            self._deliverer,
            self.serializer,
            url=url,
            method=method,
            headers=headers,
            secret=secret,
            success=success,
            stop=stop,
            place=f"{caller.f_code.co_filename}:{caller.f_lineno}",
            queue=queue,
            priority=priority,
            retry=retry,
            timeout=timeout,
            keep_result=keep_result,
            unique=unique,
            rate=rate,
            concurrency=concurrency,
            expires=expires,
            then=then,
            at_most_once=at_most_once,
            redact=redact,
            aliases=aliases,
        )
        self._require_possible(handler)
        self.registry.add(handler)
        self._handler_added()
        return HttpJobFunction(handler, delivery, self._source())

    def callback_pauses(self) -> list[CallbackPause]:
        """List the receivers of callbacks that get no requests for a while, because they answered 429 or 503.

        The list also has those whose pause is over and that wait for a successful probe.
        """
        from mainspring.jobs.paused_receivers import list_pauses  # noqa: PLC0415 - see `mainspring.public`

        return list_pauses(self._source().manager())

    callback_pauses_async = async_twin(callback_pauses)

    def resume_callbacks(self, host: str, *, type: str | None = None) -> int:
        """Lift the pauses of a host, and make the jobs due that were put off for them; return how many there were.

        - `host`: the host as `callback_pauses` lists it, with its port if that is not the default
        - `type`: lift only the pauses of this job type, and that of the whole host
        """
        from mainspring.jobs.paused_receivers import resume_host  # noqa: PLC0415 - see `mainspring.public`

        full_name = None if type is None else self.registry.full_name(type)
        return resume_host(self._source().manager(), host, full_name)

    resume_callbacks_async = async_twin(resume_callbacks, writes=True)

    def callback_types(self) -> tuple[str, ...]:
        """Return the names of the job types whose jobs are HTTP requests."""
        return tuple(handler.name for handler in self.registry.all() if handler.is_callback)

    @abstractmethod
    def _require_possible(self, handler: Handler) -> None:
        """Raise `ValueError` if a setting of the application rules out an option of this handler.

        An example is `at_most_once=` with `durability="normal"`.
        """

    @abstractmethod
    def _handler_added(self) -> None:
        """Let a worker that runs in this process serve a newly registered handler; do nothing without a worker."""

    @abstractmethod
    def _source(self) -> ManagerProvider:
        """Return this object as the application (`Mainspring`), from which job functions get the job manager."""
