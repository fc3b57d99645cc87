"""Renders templates: whole pages, and the live blocks of a page alone.

Invariants
- Everything is escaped, unless a template or a chart says that it is markup.
- A name that a template does not know is an error, not an empty text.
- A live block has a placeholder instead of a CSRF token, so that browsers can share it. `fill_csrf` replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jinja2

from mainspring.web.dashboard import charts, content, formats
from mainspring.web.dashboard.assets import Assets
from mainspring.web.dashboard.page import NavEntry, Page, PageCall
from mainspring.web.dashboard.sessions import make_id

CSRF_PLACEHOLDER = f"csrf-{make_id()}"
"""The text that stands for the CSRF token in rendered HTML. It is random, so that no data of jobs contain it."""


class Renderer:
    """Renders the templates of the dashboard.

    - `assets`: has the URLs of the style sheet and the script
    - `navigation`: the entries of the navigation
    """

    def __init__(self, assets: Assets, navigation: Iterable[NavEntry]) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("mainspring.web.dashboard"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= formats.FILTERS | content.FILTERS
        self._environment.globals |= {
            "asset": assets.path_of,
            "navigation": tuple(navigation),
            "charts": charts,
        }
        self._environment.globals["ui"] = self._environment.get_template("ui.html").module

    def page(self, page: Page, call: PageCall, context: Mapping[str, Any], shown: Mapping[str, Any]) -> str:
        """Return the HTML of a whole page, with a placeholder for the CSRF token.

        `shown` has variables that live blocks (sent again when they change) do not have: caller, theme, message.
        """
        variables = {"title": page.title, "page": page, **_common(call), **context, **shown}
        return self._environment.get_template(page.template_name).render(variables)

    def blocks(self, page: Page, call: PageCall, context: Mapping[str, Any]) -> dict[str, str]:
        """Return the HTML of each live block of a page, by its name, with a placeholder for the CSRF token."""
        template = self._environment.get_template(page.template_name)
        variables = template.new_context({"title": page.title, "page": page, **_common(call), **context})
        return {name: "".join(template.blocks[name](variables)) for name in page.live}

    def plain(self, template: str, context: Mapping[str, Any]) -> str:
        """Return the HTML of a template that is not a declared page, such as the login or an error."""
        return self._environment.get_template(template).render(context)


def _common(call: PageCall) -> dict[str, Any]:
    return {
        "call": call,
        "url": call.url,
        "root": call.root,
        "may": call.may,
        "has": call.has,
        "now": call.now,
        "csrf": CSRF_PLACEHOLDER,
        "is_read_only": call.is_read_only,
    }


def fill_csrf(text: str, token: str) -> str:
    """Return rendered HTML with the CSRF token of a browser in place of the placeholder."""
    return text.replace(CSRF_PLACEHOLDER, token)
