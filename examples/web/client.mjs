// A client of Mainspring's HTTP API for Node.js 20 or newer, without packages.
//
//     MAINSPRING_API=http://127.0.0.1:8000/jobs MAINSPRING_TOKEN=msp_... node client.mjs
//
// The address is that of the server, or the path under which a web application has mounted it, as fastapi_shop.py
// does. The token needs the scopes submit, read and operate. Import `Mainspring` from your own programs.

import { randomUUID } from "node:crypto";
import { argv, env } from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const ATTEMPTS = 8; // of one request, with pauses of about 12 seconds in all
const ANSWER_MS = 30_000; // for one answer; a stream of events may take longer
const ENDED = new Set(["COMPLETED", "FAILED", "CANCELED"]);
const BUSY = "urn:mainspring:problem:idempotency-key-busy"; // the first request with this key is not answered yet

/** The answer of a server that refused a request. Decide by `type`, which never changes. */
export class Problem extends Error {
  constructor(status, { type = "about:blank", detail = `the server answered ${status}` }) {
    super(detail);
    this.status = status;
    this.type = type;
  }
}

export class Mainspring {
  #api;
  #token;

  constructor(url, token) {
    this.#api = `${url.replace(/\/+$/, "")}/api/v1`;
    this.#token = token;
  }

  /** Submit a job, exactly once. Options: delay, at, queue, priority, id, unique, sequence, retry, timeout, expires. */
  async submit(type, args, options = {}) {
    return (await this.#call("POST", "/jobs", { type, arguments: args, ...options })).id;
  }

  /** Submit up to 10,000 jobs, `{type, arguments, ...options}` each; return their ids in order. */
  async submitMany(jobs) {
    return (await this.#call("POST", "/jobs/batch", jobs)).ids;
  }

  /** Read a job: its status, arguments, result, error and more. */
  async get(id) {
    return this.#call("GET", `/jobs/${encodeURIComponent(id)}`);
  }

  /** Return all jobs that match, page by page: `for await (const job of client.list({ status: "FAILED" }))`. */
  async *list(filters = {}) {
    let after;
    do {
      const query = new URLSearchParams(after ? { ...filters, after } : filters);
      const page = await this.#call("GET", `/jobs?${query}`);
      yield* page.jobs;
      after = page.next;
    } while (after);
  }

  /** Cancel a job. True is a promise: it will not run. False: it runs and is asked to stop, or was canceled before. */
  async cancel(id) {
    return (await this.#call("POST", `/jobs/${encodeURIComponent(id)}/cancel`, {})).is_done;
  }

  /** Wait until a job has ended, and return it. Pass `signal: AbortSignal.timeout(60_000)` to wait for a minute. */
  async wait(id, { signal } = {}) {
    for (;;) {
      try {
        // The stream begins before the job is read, so the end of the job is in one of the two.
        for await (const _ of this.events({ job: id, kind: "completed,failed,canceled" }, { signal })) {
          const job = await this.get(id);
          if (ENDED.has(job.status)) return job;
        }
      } catch (error) {
        if (signal?.aborted || error instanceof Problem) throw error;
      }
      await sleep(500, undefined, { signal }); // the connection broke, or the server stopped: follow again
    }
  }

  /** Follow events. The first one has the type "open": what happens from now on is in the stream. "reset" means
   *  that events are missing: read the jobs again. All others are a "message". */
  async *events(filters = {}, { signal } = {}) {
    const end = new AbortController();
    const signals = AbortSignal.any(signal ? [signal, end.signal] : [end.signal]);
    try {
      const response = await this.#fetch("GET", `/events?${new URLSearchParams(filters)}`, { signal: signals });
      yield { type: "open" };
      const decoder = new TextDecoder();
      let text = "";
      for await (const bytes of response.body) {
        const blocks = (text + decoder.decode(bytes, { stream: true })).split("\n\n");
        text = blocks.pop(); // its end has not arrived yet
        for (const block of blocks) {
          const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/, 2)));
          if (fields.data) yield { type: fields.event ?? "message", id: fields.id, data: JSON.parse(fields.data) };
        }
      }
    } finally {
      end.abort(); // the reader has enough: close the connection
    }
  }

  async #call(method, path, body) {
    return this.#fetch(method, path, { body, read: (response) => response.json() });
  }

  /** Send a request until it is answered. All attempts have the same key, so the server carries it out once. */
  async #fetch(method, path, { body, signal, read }) {
    const headers = { Authorization: `Bearer ${this.#token}` };
    if (body !== undefined) {
      headers["Content-Type"] = "application/json";
      headers["Idempotency-Key"] = randomUUID();
    }
    const request = { method, headers, body: body && JSON.stringify(body) };
    for (let attempt = 1; ; attempt++) {
      let error;
      let pause = Math.min(5_000, 100 * 2 ** attempt) * (0.5 + Math.random() / 2);
      try {
        const limit = read ? AbortSignal.timeout(ANSWER_MS) : signal;
        const response = await fetch(this.#api + path, { ...request, signal: limit });
        if (response.ok) return read ? await read(response) : response;
        error = new Problem(response.status, await response.json().catch(() => ({})));
        pause = 1_000 * Number(response.headers.get("Retry-After")) || pause;
      } catch (failure) {
        error = failure; // no answer: the request may have been carried out
      }
      const isFinal = error instanceof Problem && !(error.type === BUSY || error.status === 429 || error.status >= 500);
      if (isFinal || signal?.aborted || attempt === ATTEMPTS) throw error;
      await sleep(pause, undefined, { signal });
    }
  }
}

async function main() {
  const jobs = new Mainspring(env.MAINSPRING_API ?? "http://127.0.0.1:8000/jobs", env.MAINSPRING_TOKEN);

  const id = await jobs.submit("price_of", { order_id: 7 });
  const job = await jobs.wait(id, { signal: AbortSignal.timeout(60_000) });
  console.log(`order 7 costs ${job.result}`);

  const later = await jobs.submitMany(
    [1, 2, 3].map((order) => ({ type: "cancel_order", arguments: { order_id: order }, delay: 1800 })),
  );
  for await (const { arguments: args, status, due } of jobs.list({ type: "cancel_order", status: "PENDING" }))
    console.log(`order ${args.order_id} is canceled at ${due}, unless it is paid: ${status}`);

  for (const id of later) await jobs.cancel(id);
  console.log(`paid: ${(await Promise.all(later.map((id) => jobs.get(id)))).map((job) => job.status)}`);

  try {
    await jobs.submit("price_of", { order: 7 });
  } catch (problem) {
    console.log(`refused with ${problem.status}, ${problem.type}: ${problem.message}`);
  }
}

if (import.meta.url === pathToFileURL(argv[1] ?? "").href) await main();
