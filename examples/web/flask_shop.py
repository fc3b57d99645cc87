"""A shop with Flask: an order that is not paid within half an hour is canceled.

    gunicorn flask_shop:web                                # the shop, at http://127.0.0.1:8000/
    mainspring run flask_shop:app --http 127.0.0.1:8400    # the worker, and the API at http://127.0.0.1:8400/api/v1/

The API is not mounted into Flask. It is an ASGI application with streams of events that stay open, and under WSGI
each of them would occupy a thread of the web server. So the process of the worker serves it.
`curl.sh` is a client.
"""

from datetime import timedelta

from flask import Flask

from mainspring import DuplicateJob, JobNotFound, Mainspring

Answer = tuple[dict[str, object], int]

app = Mainspring("sqlite:///shop.db")  # in the folder in which both processes start
web = Flask(__name__)


@app.job(name="cancel_order", queue="orders")  # a name for clients, whatever this module is called
def cancel_order(order_id: int, reason: str = "unpaid") -> str:
    return f"order {order_id} is canceled: {reason}"


@app.job(name="price_of", queue="prices")
def price_of(order_id: int) -> int:
    return 100 * order_id


@web.post("/orders/<int:order_id>")
def place(order_id: int) -> Answer:
    # The id of the job follows from the order, so the request for the payment needs only the number of the order.
    job = cancel_order.options(delay=timedelta(minutes=30), id=f"order-{order_id}").submit(order_id)
    return {"job": job.id}, 201  # the job is on disk


@web.post("/orders/<int:order_id>/payment")
def pay(order_id: int) -> Answer:
    if app.cancel(f"order-{order_id}"):  # True is a promise: the order will not be canceled
        return {"is_paid": True}, 200
    return {"is_paid": False, "error": "it was too late, or paid already"}, 409


@web.errorhandler(DuplicateJob)
def is_placed_already(_: DuplicateJob) -> Answer:
    return {"error": "this order was placed before"}, 409


@web.errorhandler(JobNotFound)
def is_unknown(_: JobNotFound) -> Answer:
    return {"error": "there is no such order"}, 404
