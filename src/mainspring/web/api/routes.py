"""The list of all endpoints of the API. A module with endpoints has a function `endpoints(app)`; name it here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mainspring.web.api import (
    audit,
    batch,
    bulk_jobs,
    callbacks,
    dead_letters,
    events,
    job_actions,
    jobs,
    queues,
    remote_workers,
    schedules,
    server_info,
    store_state,
    submitting,
)
from mainspring.web.api.endpoint import Endpoint

if TYPE_CHECKING:
    from mainspring.app import Mainspring

MODULES: tuple[Callable[[Mainspring], list[Endpoint]], ...] = (
    submitting.endpoints,
    batch.endpoints,
    jobs.endpoints,
    job_actions.endpoints,
    bulk_jobs.endpoints,
    events.endpoints,
    dead_letters.endpoints,
    schedules.endpoints,
    queues.endpoints,
    callbacks.endpoints,
    store_state.endpoints,
    audit.endpoints,
    remote_workers.endpoints,
)


def all_endpoints(app: Mainspring) -> list[Endpoint]:
    """Return the declarations of all endpoints. The first ones describe the server and the API itself."""
    found = [endpoint for endpoints in MODULES for endpoint in endpoints(app)]
    return [*server_info.endpoints(found), *found]
