"""The list of all pages and actions of the dashboard, and its navigation.

Add a new module of pages to `MODULES`.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from mainspring.security.permissions import Scope
from mainspring.web.dashboard import (
    audit_pages,
    callback_pages,
    dead_letter_pages,
    job_page,
    jobs_page,
    overview,
    queue_pages,
    schedule_pages,
    submit_page,
    worker_pages,
)
from mainspring.web.dashboard.page import Action, NavEntry, Page

if TYPE_CHECKING:
    from mainspring.app import Mainspring

MODULES: tuple[ModuleType, ...] = (
    overview,
    jobs_page,
    job_page,
    submit_page,
    dead_letter_pages,
    schedule_pages,
    queue_pages,
    worker_pages,
    callback_pages,
    audit_pages,
)
"""The modules with pages. Each has a function `pages(app)`, and may have a function `actions(app)`."""

NAVIGATION: tuple[NavEntry, ...] = (
    NavEntry(name="overview", label="Overview", path="/", key="o"),
    NavEntry(name="jobs", label="Jobs", path="/jobs", key="j"),
    NavEntry(name="dead-letters", label="Dead letters", path="/dead-letters", key="d"),
    NavEntry(name="schedules", label="Schedules", path="/schedules", key="s"),
    NavEntry(name="queues", label="Queues", path="/queues", key="q"),
    NavEntry(name="workers", label="Workers", path="/workers", key="w"),
    NavEntry(name="callbacks", label="Callbacks", path="/callbacks", key="c"),
    NavEntry(name="audit", label="Audit", path="/audit", key="a", scopes=(Scope.OPERATE,)),
)
"""The entries of the navigation. An entry whose page no module declares is not shown."""


def all_pages(app: Mainspring) -> list[Page]:
    """Return the declarations of all pages of the dashboard."""
    return [page for module in MODULES for page in module.pages(app)]


def all_actions(app: Mainspring) -> list[Action]:
    """Return the declarations of all actions of the dashboard."""
    return [action for module in MODULES if hasattr(module, "actions") for action in module.actions(app)]


def navigation_for(pages: list[Page]) -> list[NavEntry]:
    """Return the entries of the navigation whose page is among `pages`."""
    names = {page.name for page in pages}
    return [entry for entry in NAVIGATION if entry.name in names]
