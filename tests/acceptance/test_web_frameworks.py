"""The page about web frameworks: its programs run as they stand, under gunicorn and uvicorn, beside workers."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from mainspring.testing.polling import eventually
from tests.support import PATIENCE

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "web.md"
PROGRAM = re.compile(r"^```python\n# (?P<name>\S+\.py)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
PROJECT = {
    "shop/settings.py": """
from pathlib import Path
BASE_DIR = Path(__file__).parents[1]
SECRET_KEY = "test"
ALLOWED_HOSTS = ["shop"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "django.db",
             "OPTIONS": {"timeout": 60, "transaction_mode": "IMMEDIATE"}}}
""",
    "shop/models.py": """
from django.db import models

class Order(models.Model):
    state = models.CharField(max_length=40)
    invoice = models.CharField(max_length=40, default="")
""",
    "shop/urls.py": """
from django.urls import path
from shop import views

urlpatterns = [path("orders", views.place_order), path("orders/<int:order_id>", views.show_order)]
""",
    "shop/wsgi.py": """
from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
""",
    "manage.py": """
import sys
from django.core.management import execute_from_command_line

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
""",
    "shop/__init__.py": "",
    "shop/management/__init__.py": "",
    "shop/management/commands/__init__.py": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with all programs of the page, and with the parts of a Django project that the page leaves out."""
    programs = {found["name"]: found["code"] for found in PROGRAM.finditer(PAGE.read_text(encoding="utf-8"))}
    assert len(programs) == 7, sorted(programs)
    for name, code in (programs | PROJECT).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
    return tmp_path


class Site:
    """A web server that listens on a Unix socket, so that it needs no port."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def request(self, method: str, path: str) -> dict[str, Any]:
        connection = HTTPConnection("shop", timeout=PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE)
        connection.sock.connect(str(self._path))
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status in (200, 201), body
            found: dict[str, Any] = json.loads(body)
            return found
        finally:
            connection.close()

    def is_up(self) -> bool:
        """Return whether the server accepts connections."""
        with socket.socket(socket.AF_UNIX) as trial:
            return trial.connect_ex(str(self._path)) == 0


@contextmanager
def started(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[None]:
    """Run a Python module in the folder until the end of the block; end it as an operator does."""
    output = (folder / "output.txt").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)} | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    with output, process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                output.flush()
                sys.stdout.write((folder / "output.txt").read_text(errors="replace"))  # shown if the test fails


@contextmanager
def served(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Site]:
    """Run a web server that accepts requests; `{}` in the arguments is the path of its socket."""
    path = folder / "web.sock"
    filled = [argument.format(path) for argument in arguments]
    with started(folder, *filled, environment=environment):
        site = Site(path)
        assert eventually(site.is_up), (folder / "output.txt").read_text(errors="replace")
        yield site


def worker(folder: Path, environment: dict[str, str] | None = None, app: str = "jobs:app") -> Any:
    return started(folder, "mainspring", "run", app, "--health-dir", str(folder), environment=environment)


@pytest.mark.parametrize("options", [(), ("--preload",)], ids=["each imports", "preload"])
def test_flask_under_gunicorn(folder: Path, options: tuple[str, ...]) -> None:
    gunicorn = ("gunicorn", "flask_shop:web", "--workers", "2", "--bind", "unix:{}", *options)
    with served(folder, *gunicorn) as site, worker(folder):
        jobs = [site.request("POST", f"/orders/{number}")["job"] for number in range(8)]
        assert [site.request("GET", f"/jobs/{job}")["status"] for job in jobs] == ["PENDING"] * 8
        paid = [site.request("POST", f"/payments/{job}")["is_paid_in_time"] for job in jobs]
        assert paid == [True] * 8
        assert [site.request("GET", f"/jobs/{job}")["status"] for job in jobs] == ["CANCELED"] * 8


def test_fastapi_beside_a_worker(folder: Path) -> None:
    with served(folder, "uvicorn", "fastapi_shop:web", "--uds", "{}") as site, worker(folder):
        job = site.request("POST", "/orders/7")["job"]
        assert site.request("POST", f"/payments/{job}") == {"is_paid_in_time": True}
        assert site.request("GET", "/prices/7") == {"price": 700}


def test_fastapi_with_a_worker_in_the_web_process(folder: Path) -> None:
    with served(folder, "uvicorn", "small_shop:web", "--uds", "{}") as site:
        assert site.request("GET", "/prices/3") == {"price": 300}


@pytest.mark.parametrize("kind", ["mainspring run", "manage.py"])
def test_django_under_gunicorn(folder: Path, kind: str) -> None:
    environment = {"DJANGO_SETTINGS_MODULE": "shop.settings"}
    migrate = [sys.executable, "manage.py", "migrate", "--run-syncdb", "--verbosity", "0"]
    subprocess.run(migrate, cwd=folder, env=os.environ | environment, timeout=PATIENCE, check=True)
    if kind == "manage.py":
        running = started(folder, "manage", "runjobs", environment=environment)
    else:
        running = worker(folder, environment, "shop.jobs:app")
    gunicorn = ("gunicorn", "shop.wsgi", "--workers", "2", "--bind", "unix:{}")
    with served(folder, *gunicorn, environment=environment) as site, running:
        order = site.request("POST", "/orders")["order"]
        done = {"state": "receipt sent", "invoice": f"invoice of order {order}"}
        assert eventually(lambda: site.request("GET", f"/orders/{order}") == done)
