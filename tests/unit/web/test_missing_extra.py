"""Without the packages of the extra `web`, errors say what to install; everything else works."""

import sys

import pytest

from mainspring import Mainspring, MissingExtra
from mainspring.cli.http_options import HttpOptions, listening, open_entry

OPTIONS = HttpOptions(
    address="127.0.0.1:0", host_names=(), no_auth=False, store_metrics=False, app=None, url="memory://"
)


@pytest.fixture(params=["starlette", "uvicorn", "h11"])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that cannot be imported."""
    package = str(request.param)
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("mainspring.web.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    return package


def test_the_commands_say_what_to_install(missing: str) -> None:
    with pytest.raises(MissingExtra, match=r"the HTTP server needs .*; pip install 'mainspring\[web\]'"):
        open_entry(OPTIONS).__enter__()


def test_without_a_server_nothing_is_missed(missing: str) -> None:
    with listening(None) as entry:
        assert entry is None


@pytest.mark.parametrize("missing", ["starlette"], indirect=True)
def test_asgi_says_what_to_install(missing: str) -> None:
    app = Mainspring("memory://")
    with pytest.raises(ImportError, match=r"app\.asgi\(\) needs .*; pip install 'mainspring\[web\]'"):
        app.asgi(auth="tokens")
