"""Links between jobs: predecessor and follow-up, dead letter and replay."""

from mainspring import Mainspring, Retry
from mainspring.jobs.job_links import find_links
from mainspring.testing import TimeTravel


def links(app: Mainspring, job_id: str) -> dict[str, str]:
    manager = app.manager()
    return {str(link.relation): link.record.id for link in find_links(manager.engine, manager.record(job_id))}


def test_a_follow_up_and_its_predecessor_know_each_other(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(name="second", queue="other")
    def second(order: int) -> int:
        return order

    @app.job(name="first")
    def first(order: int) -> int:
        return order

    ids = [first.options(then=second).submit(number).id for number in range(3)]
    travel.settle()
    followers = {links(app, job_id)["follow-up"] for job_id in ids}
    assert followers == {job.id for job in app.jobs(type="second")}
    for job_id in ids:
        assert links(app, links(app, job_id)["follow-up"]) == {"predecessor": job_id}


def test_a_headers_id_is_not_inherited_by_the_next_but_one(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(name="third")
    def third() -> None: ...

    @app.job(name="second")
    def second() -> None: ...

    @app.job(name="first")
    def first() -> None: ...

    job_id = first.options(then=second.options(then=third)).submit().id
    travel.settle()
    middle = links(app, job_id)["follow-up"]
    last = links(app, middle)["follow-up"]
    assert links(app, last) == {"predecessor": middle}


def test_a_dead_letter_and_its_replay_know_each_other(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(name="fail", retry=Retry(max_attempts=1))
    def fail() -> None:
        raise ValueError

    @app.job(name="gone")
    def gone() -> None: ...

    letter = fail.submit().id
    travel.settle()
    (replay,) = app.dead_letters.replay(letter)
    travel.settle()
    assert links(app, letter) == {"replay": replay}
    assert links(app, replay) == {"original": letter}
    app.dead_letters.purge(letter)
    assert links(app, replay) == {}
    assert links(app, gone.submit().id) == {}
