"""Submits over HTTP: one by one beside a plain Starlette service with Huey, in pairs, and in batches."""

import json
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, time

from benchmarks.http.client import CREATED, OURS, PEER, KeepAlive, encode_request, rate, server
from benchmarks.http.served import make_app
from benchmarks.jobs.process import fresh_store
from benchmarks.measure import Line, Section, paired

ROUNDS = 9
EACH = {1: 400, 8: 150}
BATCH = 10_000
BATCH_ROUNDS = 3
PEER_NAME = "Starlette + Huey (FULL)"
AT_LEAST = 1.0


def token_for(store: Path) -> str:
    """Make the store with a token for all benchmarks, and return the token."""
    with make_app(store) as app:
        return str(app.tokens.create("bench", scopes=["submit", "read"]).secret)


def single(rounds: int, share: float) -> list[Line]:
    """Measure both services in turn, every second round in the reverse order."""
    lines = []
    with fresh_store() as our_store, fresh_store() as peer_store:
        token = token_for(our_store)
        body = json.dumps({"type": "work", "arguments": {"value": 1}}).encode()
        request = encode_request("POST", "/jobs", token, body)
        with server(OURS, our_store) as ours, server(PEER, peer_store) as peer:
            for connections, each in EACH.items():
                rates: dict[int, list[float]] = {ours: [], peer: []}
                for number in range(rounds):
                    for port in (ours, peer) if number % 2 else (peer, ours):
                        rates[port].append(rate(port, request, connections, max(1, round(each * share))))
                what = f"single submits, {connections} connection{'s' if connections > 1 else ''}"
                lines.append(paired(what, rates[ours], rates[peer], peer_name=PEER_NAME, at_least=AT_LEAST))
    return lines


def batches(rounds: int, size: int) -> list[Line]:
    """Submit batches as a JSON array and as NDJSON, in turn."""
    jobs = [json.dumps({"type": "work", "arguments": {"value": number}, "delay": 3600}) for number in range(size)]
    bodies = {
        "JSON": (f"[{','.join(jobs)}]".encode(), "application/json"),
        "NDJSON": ("\n".join(jobs).encode(), "application/x-ndjson"),
    }
    rates: dict[str, list[float]] = {name: [] for name in bodies}
    with fresh_store() as store:
        encode = partial(encode_request, "POST", "/jobs/batch", token_for(store))
        with server(OURS, store) as port:
            connection = KeepAlive(port)
            for number in range(rounds + 1):  # the first one is not counted
                for name, (body, kind) in bodies.items():
                    began = perf_counter()
                    answer = connection.expect(encode(body, kind), CREATED)
                    took = perf_counter() - began
                    assert answer["stored"] == size
                    if number:
                        rates[name].append(size / took)
            connection.close()
    return [
        Line(what=f"batches of {size:,} jobs as {name}, one connection", ours=f"{median(found):,.0f} jobs/s")
        for name, found in rates.items()
    ]


def run(rounds: int = ROUNDS, share: float = 1.0, batch: int = BATCH) -> Section:
    began = time()
    lines = [*single(rounds, share), *batches(min(rounds, BATCH_ROUNDS), batch)]
    return Section(
        title=f"HTTP: submits over keep-alive, medians of {rounds} pairs",
        lines=lines,
        text="Both services run under uvicorn with h11 and asyncio, log no requests, and wait for the disk. Ours "
        "checks a token. The ratio is the median of the ratios within rounds, with the smallest and the largest. "
        f"Batches: median of {min(rounds, BATCH_ROUNDS)}. Measured in {time() - began:.0f} s.",
    )


if __name__ == "__main__":
    for found in run(2, 0.1, 1_000).lines:
        print(found)
