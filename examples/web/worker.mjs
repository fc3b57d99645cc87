// A worker of Mainspring for Node.js 20 or newer, without packages: it runs jobs of types declared with
// app.remote_job. docs/http-workers.md describes the protocol.
//
//     mainspring serve pictures:app --http 127.0.0.1:8400
//     MAINSPRING_TOKEN=$(mainspring tokens create node --scope work --app pictures:app) node worker.mjs
//
// MAINSPRING_API is the address of a server, or of several, separated by commas. A worker belongs to its token and
// not to a server, so that it goes on with another one. Import `Worker` from your own programs.

import { hostname } from "node:os";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const GONE = "urn:mainspring:problem:worker-not-found";
const LOST = "urn:mainspring:problem:lease-lost";
const ANSWER_MS = 60_000; // for one answer; a claim waits up to 30 seconds for a job

/** The answer of a server that refused a request. */
class Problem extends Error {
  constructor(status, { type = "about:blank", detail = `the server answered ${status}`, jobs = [] } = {}) {
    super(detail);
    Object.assign(this, { status, type, jobs });
  }
}

/** Throw this from a handler to fail a job for good, without a retry. */
export class GiveUp extends Error {}

export class Worker {
  #servers;
  #token;
  #handlers;
  #options;
  #path; // of the enrolled worker
  #heartbeatMs;
  #running = new Map(); // by "id/token": {job, controller, reason, progress}
  #state = "run"; // run, quiet, terminate
  #isStopping = false;
  #isOver = false;
  #stopped = new AbortController(); // ends a claim that waits; a job that it has just got goes back with the DELETE

  /** `handlers` has a function for each job type: async (args, {job, signal, progress}) => result. */
  constructor(urls, token, handlers, options = {}) {
    this.#servers = urls.split(",").map((url) => `${url.trim().replace(/\/+$/, "")}/api/v1`);
    this.#token = token;
    this.#handlers = handlers;
    this.#options = { concurrency: 4, lease: 45, wait: 30, name: `${hostname()}:${process.pid}`, ...options };
  }

  /** Run jobs until `stop` is called, or an operator asks the worker to terminate. */
  async run() {
    await this.#enroll();
    this.#beat();
    while (this.#state !== "terminate") {
      const free = this.#options.concurrency - this.#running.size;
      if (this.#state === "quiet" || free <= 0) await this.#oneEnds();
      else await this.#claim(free);
    }
    const grace = sleep((this.#options.grace ?? 10) * 1000, null, { ref: false });
    await Promise.race([grace, Promise.allSettled([...this.#running.values()].map((each) => each.done))]);
    this.#isOver = true;
    await this.#call("DELETE", this.#path).catch(() => {}); // what is not settled runs again elsewhere
  }

  /** Claim no more jobs, let those that run finish, and leave. */
  stop() {
    this.#isStopping = true;
    this.#state = "terminate";
    this.#stopped.abort();
  }

  async #enroll() {
    const { name, lease } = this.#options;
    const body = { name, types: Object.keys(this.#handlers), lease };
    const worker = await this.#call("POST", "/workers", body);
    this.#path = `/workers/${worker.number}`;
    this.#heartbeatMs = worker.heartbeat_every * 1000;
    console.log(`worker ${worker.number}: enrolled for ${worker.types.join(", ")}`);
  }

  async #claim(free) {
    try {
      const body = { jobs: free, wait: this.#options.wait };
      const { jobs, direction } = await this.#call("POST", `${this.#path}/claim`, body, 1, [this.#stopped.signal]);
      this.#obey(direction);
      for (const job of jobs) this.#start(job);
    } catch (error) {
      // A lost answer may have had jobs. The worker does not name them in its heartbeats, so that they run again.
      if (error.type === GONE) await this.#enrollAgain();
      else await sleep(200);
    }
  }

  #obey(direction) {
    if (!this.#isStopping) this.#state = direction;
  }

  #start(job) {
    const key = `${job.id}/${job.fencing_token}`;
    const entry = { job, controller: new AbortController(), isLost: false, progress: null };
    this.#running.set(key, entry);
    entry.done = this.#perform(entry).finally(() => this.#running.delete(key));
  }

  async #perform(entry) {
    const { job, controller } = entry;
    const progress = (done, total, note) => (entry.progress = { done, total, note });
    const context = { job, signal: controller.signal, progress };
    let end;
    try {
      const result = await this.#handlers[job.type](job.arguments, context);
      end = { outcome: "completed", result: result ?? null };
    } catch (error) {
      end = { outcome: "failed", error: String(error?.stack ?? error), retry: !(error instanceof GiveUp) };
      if (error?.retryAfter !== undefined) end = { ...end, retry: true, retry_after: error.retryAfter };
    }
    if (entry.isLost) return; // another worker has the job, and this result is worth nothing
    const { id, fencing_token } = job;
    try {
      const settled = await this.#call("POST", `${this.#path}/settle`, { jobs: [{ id, fencing_token, ...end }] });
      console.log(`job ${id}: ${settled.jobs[0].status}`);
    } catch (error) {
      if (error.type !== LOST && error.type !== GONE) throw error;
      console.log(`job ${id}: the lease is lost (${error.message})`);
    }
  }

  async #beat() {
    while (!this.#isOver) {
      await sleep(this.#heartbeatMs, null, { ref: false });
      if (this.#isOver) return;
      const entries = [...this.#running.values()];
      const named = entries.map(({ job: { id, fencing_token }, progress }) => ({ id, fencing_token, progress }));
      try {
        const { direction, jobs } = await this.#call("POST", `${this.#path}/heartbeat`, { jobs: named }, 3);
        this.#obey(direction);
        jobs.forEach(({ state, reason }, index) => this.#stopJob(entries[index], state, reason));
      } catch (error) {
        if (error.type === GONE) await this.#enrollAgain(entries);
        else console.log(`a heartbeat failed: ${error.message}`);
      }
    }
  }

  #stopJob(entry, state, reason) {
    if (state === "run") return;
    entry.isLost ||= state === "lost";
    entry.controller.abort(new Error(state === "lost" ? "the lease is lost" : `stopped: ${reason}`));
  }

  /** The lease of the worker has ended. Its jobs run elsewhere, and it goes on under a new number. */
  async #enrollAgain(entries = [...this.#running.values()]) {
    for (const entry of entries) this.#stopJob(entry, "lost");
    if (!this.#isOver) await this.#enroll();
  }

  async #oneEnds() {
    const ends = [...this.#running.values()].map((each) => each.done.catch(() => {}));
    await Promise.race([sleep(1000, null, { ref: false }), ...ends]);
  }

  /** Send a request; repeat it if no answer comes, with the next server. Every request can be repeated safely. */
  async #call(method, path, body, attempts = 40, signals = []) {
    for (let attempt = 1; ; attempt++) {
      try {
        const answer = await fetch(`${this.#servers[0]}${path}`, {
          method,
          headers: { Authorization: `Bearer ${this.#token}`, "Content-Type": "application/json" },
          body: body === undefined ? undefined : JSON.stringify(body),
          signal: AbortSignal.any([AbortSignal.timeout(ANSWER_MS), ...signals]),
        });
        const content = await answer.json();
        if (answer.ok) return content;
        throw new Problem(answer.status, content);
      } catch (error) {
        const isFinal = error instanceof Problem && error.status < 500 && error.status !== 429;
        if (isFinal || attempt >= attempts) throw error;
        this.#servers.push(this.#servers.shift());
        await sleep(Math.min(100 * 2 ** attempt, 2000));
      }
    }
  }
}

// -- the handlers of this example

async function resize({ file, width, seconds = 0, fail = false }, { job, signal, progress }) {
  if (typeof width !== "number") throw new GiveUp(`width must be a number, got ${width}`);
  const steps = 10;
  for (let step = 0; step < steps; step++) {
    progress(step, steps, `${file}, attempt ${job.attempt}`);
    await sleep((seconds * 1000) / steps, null, { signal });
  }
  if (fail) throw new Error(`${file} could not be read`);
  return { file, width, worker: process.pid };
}

if (pathToFileURL(process.argv[1]).href === import.meta.url) {
  const lease = Number(process.env.MAINSPRING_LEASE ?? 45);
  const { MAINSPRING_API = "http://127.0.0.1:8400", MAINSPRING_TOKEN } = process.env;
  const worker = new Worker(MAINSPRING_API, MAINSPRING_TOKEN, { resize }, { lease });
  for (const name of ["SIGINT", "SIGTERM"]) process.on(name, () => worker.stop());
  await worker.run();
  process.exit(0);
}
