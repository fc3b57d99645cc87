"""Callbacks: a job without Python code is a signed HTTP request at its due time, to a receiver that is allowed."""

import hashlib
import hmac
import logging
from base64 import b64decode, b64encode
from contextlib import chdir
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from tempfile import TemporaryDirectory
from threading import Thread

from mainspring import CallbackPolicy, CallbackRefused, CallbackSecret, Mainspring, Retry

logging.getLogger("mainspring").setLevel(logging.CRITICAL)  # the worker logs each failure

KEY = CallbackSecret.generate()  # keep it in the settings of both programs
received: list[str] = []


class Shop(BaseHTTPRequestHandler):
    """The receiver: it verifies the signature, and is out of order the first time."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + body
        digest = hmac.digest(b64decode(KEY.removeprefix("whsec_")), signed, hashlib.sha256)
        given = self.headers["webhook-signature"].split()
        is_genuine = any(hmac.compare_digest(each, f"v1,{b64encode(digest).decode()}") for each in given)
        assert is_genuine
        attempt = int(self.headers["Mainspring-Attempt"])
        received.append(f"attempt {attempt}: {body.decode()}")
        self.send_response(503 if attempt == 1 else 204)
        if attempt == 1:
            self.send_header("Retry-After", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Log nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
Thread(target=server.serve_forever, daemon=True).start()
SHOP = f"http://localhost:{server.server_port}"

app = Mainspring(
    "sqlite:///shop.db",
    callbacks=CallbackPolicy(
        allow=[f"{SHOP}/hooks/*"],  # nothing else may be called
        allow_http=True,  # for a receiver on this machine only:
        allow_private=True,  # the defaults allow neither
        secrets={"shop": KEY},
    ),
)
paid = app.http_job("order-paid", url=f"{SHOP}/hooks/paid", secret="shop", retry=Retry(max_attempts=3))

with TemporaryDirectory() as folder, chdir(folder), app:
    handle = paid.after(timedelta(milliseconds=50)).submit(body={"order": 42})
    with app.running():
        handle.wait(timeout=60)
    print(*received, app.explain(handle.id).text, sep="\n")
    assert received == ['attempt 1: {"order":42}', 'attempt 2: {"order":42}']

    try:
        app.http_job("elsewhere", url="https://example.com/")
    except CallbackRefused as error:
        print(error)

server.shutdown()
server.server_close()
