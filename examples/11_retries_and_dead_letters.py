"""A payment provider is down: attempts fail and back off, the job is given up, and later it is replayed."""

import logging

from mainspring import JobFailed, Mainspring, Retry, current_job

logging.getLogger("mainspring").setLevel(logging.CRITICAL)  # the worker logs each failure; here we print our own

app = Mainspring("memory://")
provider = {"is_down": True}


class CardExpired(Exception):
    """No repetition cures this."""


@app.job(retry=Retry(max_attempts=3, base=0.1, factor=2, jitter=0.1, give_up_on=(CardExpired,)))
def charge(order: int, card: str) -> str:
    print(f"  order {order}, attempt {current_job().attempt}")
    if card == "expired":
        raise CardExpired(card)
    if provider["is_down"]:
        raise ConnectionError("the provider does not answer")
    return f"order {order} is charged"


with app, app.running():
    patient, hopeless = charge.submit(1, card="4242"), charge.submit(2, card="expired")
    for handle in (patient, hopeless):
        try:
            handle.result(timeout=10)
        except JobFailed as error:
            print(f"given up: {error.reason}")

    # FAILED jobs are the dead letters. They wait for an operator.
    letters = app.dead_letters.list()  # the earliest failure first
    for letter in letters:
        causes = [f"{attempt.cause}: {attempt.error.splitlines()[0]}" for attempt in letter.history]
        print(f"dead letter of order {letter.arguments['order']}, {letter.attempts} attempts, {causes[-1]}")
    assert [letter.attempts for letter in letters] == [1, 3]

    provider["is_down"] = False
    app.dead_letters.edit(hopeless.id, {"card": "4343"})  # checked against the signature
    replays = app.dead_letters.replay(all=True, rate=10)  # new jobs, linked with their letters, ten a second
    for job_id in replays:
        print(app.handle(job_id).result(timeout=10))
    assert [app.get(job_id).origin for job_id in replays] == [patient.id, hopeless.id]
    assert app.dead_letters.list() == []
