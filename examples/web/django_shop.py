"""A shop with Django in one file: the shop, Mainspring's API under /jobs, and a worker beside them.

    python django_shop.py                                    # makes the tables, as `migrate` does in a project
    uvicorn django_shop:web --timeout-graceful-shutdown 5    # the shop, at http://127.0.0.1:8000/
    mainspring run django_shop:app                           # the worker
    mainspring tokens create client --scope read --app django_shop:app

The token opens http://127.0.0.1:8000/jobs/api/v1/. In a project, the parts of this file are settings.py,
models.py, jobs.py, views.py, urls.py and asgi.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import close_old_connections, connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_GET, require_POST
from starlette.applications import Starlette
from starlette.routing import Mount

from mainspring import JobContext, JobNotFound, Mainspring, Middleware

settings.configure(  # pages for browsers need MIDDLEWARE, too: sessions, and protection against CSRF
    SECRET_KEY="of an example",
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db", "OPTIONS": {"timeout": 30}}
    },
)
django.setup()


class Order(models.Model):
    """An order, and its state: placed, paid or canceled."""

    state = models.CharField(max_length=10, default="placed")

    class Meta:
        """Names the application that the model belongs to."""

        app_label = "shop"


app = Mainspring("sqlite:///shop.db")


class DatabaseConnections(Middleware):
    """Closes database connections around each job, as Django does around each request."""

    @contextmanager
    def attempting(self, job: JobContext) -> Iterator[None]:
        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()


app.middleware(DatabaseConnections())


@app.job(name="cancel_order", queue="orders")  # a name for clients, whatever this module is called
def cancel_order(order_id: int) -> bool:
    # An order that was paid in the last moment stays paid. A second attempt changes nothing.
    return bool(Order.objects.filter(pk=order_id, state="placed").update(state="canceled"))


@require_POST
def place(_: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        order = Order.objects.create()
        time_out = cancel_order.options(delay=timedelta(minutes=30), id=f"order-{order.pk}")
        transaction.on_commit(lambda: time_out.submit(order.pk))  # the worker must find the order
    return JsonResponse({"order": order.pk}, status=201)


@require_POST
def pay(_: HttpRequest, order_id: int) -> JsonResponse:
    is_paid = bool(Order.objects.filter(pk=order_id, state="placed").update(state="paid"))
    if is_paid:
        with suppress(JobNotFound):  # the process died between the commit and the submit
            app.cancel(f"order-{order_id}")
    return JsonResponse({"is_paid": is_paid}, status=200 if is_paid else 409)


@require_GET
def show(_: HttpRequest, order_id: int) -> JsonResponse:
    order = Order.objects.filter(pk=order_id).first()
    return JsonResponse({"state": order.state if order else "unknown"}, status=200 if order else 404)


urlpatterns = [
    path("orders", place),
    path("orders/<int:order_id>", show),
    path("orders/<int:order_id>/payment", pay),
]

api = app.asgi(auth="tokens", hosts=settings.ALLOWED_HOSTS)
web = Starlette(routes=[Mount("/jobs", api), Mount("/", get_asgi_application())])

if __name__ == "__main__":
    with connection.schema_editor() as editor:
        editor.create_model(Order)
