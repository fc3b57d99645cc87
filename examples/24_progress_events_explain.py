"""What is going on: how far a job has come, what happens to all of them, and why one does not start."""

from contextlib import chdir
from tempfile import TemporaryDirectory
from threading import Event

from mainspring import EventKind, Mainspring, Reason, current_job

app = Mainspring("sqlite:///films.db")
is_looked_at = Event()


@app.job(queue="films")
def encode(film: str, minutes: int) -> str:
    job = current_job()
    for minute in range(minutes):
        job.progress(minute, minutes, f"minute {minute} of {film}")  # stored twice a second at most
        if minute == minutes // 2:
            is_looked_at.wait(10)
    job.progress(minutes, minutes)  # the last word is always stored
    return f"{film}.webm"


with TemporaryDirectory() as folder, chdir(folder), app:
    events = app.events(timeout=10)  # follows all processes, from now on
    film = encode.submit("Metropolis", 153)
    later = encode.after(3600).submit("M", 117)

    for job_id in (film.id, later.id):
        print(app.explain(job_id))
    assert app.explain(film.id).reason is Reason.NO_WORKER
    assert app.explain(later.id).reason is Reason.NOT_DUE

    with app.running():
        for event in events:
            print(f"  {event.at:%H:%M:%S.%f}  {event.type.partition('.')[2]}  {event.kind}")
            if event.kind is EventKind.PROGRESS and not is_looked_at.is_set():
                progress = film.info().progress
                assert progress is not None
                print(f"    {progress.done:g} of {progress.total:g}: {progress.note}")
                is_looked_at.set()
            if event.kind is EventKind.COMPLETED:
                break

        queue = app.queue("films")
        queue.pause()  # on all workers; what runs goes on
        stopped = encode.submit("Nosferatu", 94)
        print(app.explain(stopped.id))
        assert app.explain(stopped.id).reason is Reason.PAUSED
        queue.resume()
        queue.drain(timeout=10)  # waits until nothing is due or runs
        print(queue.statistics())

    progress = film.info().progress
    assert progress is not None
    assert progress.share == 1
