"""The first example of the README: one file, started with `python shop.py`."""

from mainspring import Mainspring

app = Mainspring()


@app.job
def cancel_order(order_id: int) -> None:
    """Do what is to be done when nobody pays."""
    print(f"order {order_id} was not paid in time", flush=True)  # noqa: T201 - as the README has it


if __name__ == "__main__":
    cancel_order.after(2).submit(42)
    app.run()
