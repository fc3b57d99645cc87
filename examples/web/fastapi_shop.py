"""A shop with FastAPI in one process: the shop, a worker, and Mainspring's API under /jobs.

    uvicorn fastapi_shop:web --timeout-graceful-shutdown 5    # the shop, at http://127.0.0.1:8000/
    mainspring tokens create client --scope submit --scope read --scope operate --app fastapi_shop:app

The token opens http://127.0.0.1:8000/jobs/api/v1/. `client.mjs` is a client. uvicorn does not tell streams of
events that it stops, so it needs a bound for its graceful shutdown.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from mainspring import DuplicateJob, JobNotFound, Mainspring

app = Mainspring("sqlite:///shop.db")


@app.job(name="cancel_order", queue="orders")  # a name for clients, whatever this module is called
async def cancel_order(order_id: int, reason: str = "unpaid") -> str:
    return f"order {order_id} is canceled: {reason}"


@app.job(name="price_of", queue="prices")
def price_of(order_id: int) -> int:
    return 100 * order_id


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app, app.running_async():  # the worker starts and stops with the server
        yield


web = FastAPI(lifespan=lifespan)
web.mount("/jobs", app.asgi(auth="tokens", hosts=["127.0.0.1", "localhost"]))


@web.post("/orders/{order_id}", status_code=201)
async def place(order_id: int) -> dict[str, str]:
    # The id of the job follows from the order, so the request for the payment needs only the number of the order.
    time_out = cancel_order.options(delay=timedelta(minutes=30), id=f"order-{order_id}")
    job = await time_out.submit_async(order_id)  # on disk when it returns; the event loop is never blocked
    return {"job": job.id}


@web.post("/orders/{order_id}/payment")
async def pay(order_id: int) -> JSONResponse:
    if await app.cancel_async(f"order-{order_id}"):  # True is a promise: the order will not be canceled
        return JSONResponse({"is_paid": True})
    return JSONResponse({"is_paid": False, "error": "it was too late, or paid already"}, status_code=409)


@web.get("/prices/{order_id}")
async def price(order_id: int) -> dict[str, int]:
    job = await price_of.submit_async(order_id)
    return {"price": await job.result_async(timeout=30)}  # the worker computes it


@web.exception_handler(DuplicateJob)
async def is_placed_already(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({"error": "this order was placed before"}, status_code=409)


@web.exception_handler(JobNotFound)
async def is_unknown(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({"error": "there is no such order"}, status_code=404)
