"""Fixture of the tests of the API: a site on memory. A class may override it with other stores."""

from collections.abc import Iterator

import pytest

from mainspring import Mainspring
from tests.api_site import ApiSite, add_handlers


@pytest.fixture
def site() -> Iterator[ApiSite]:
    with Mainspring("memory://") as app:
        add_handlers(app)
        yield ApiSite(app)
