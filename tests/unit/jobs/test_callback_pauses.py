"""Which pauses concern a job, and which records a store keeps."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.jobs.callback_pauses import (
    MOST_OF_URL,
    MOST_PAUSES,
    PUT_OFF,
    CallbackPauseRecord,
    kept_pauses,
    pauses_of_job,
    receiver_url,
    replace_pause,
)

HOST = "hooks.example.com"
URL = f"https://{HOST}/a"


def pause(
    type_: str | None = None, url: str | None = None, *, host: str = HOST, until: int = 2
) -> CallbackPauseRecord:
    return CallbackPauseRecord(host, type_, url, 503, 1, until)


OF_HOST, OF_TYPE, OF_URL = pause(), pause("http"), pause("http", URL)
ELSEWHERE = [pause(host="b.example"), pause("paid", host="b.example"), pause("http", f"https://{HOST}/b")]
ALL = [OF_HOST, OF_TYPE, OF_URL, pause("paid"), *ELSEWHERE]


def test_a_record_is_of_a_host_a_type_or_a_url() -> None:
    assert [each.key for each in (OF_HOST, OF_TYPE, OF_URL)] == [
        (HOST, "", ""),
        (HOST, "http", ""),
        (HOST, "http", URL),
    ]
    assert (OF_HOST.strikes, OF_HOST.probe_until) == (1, 0)


def test_a_url_is_kept_without_its_query_and_not_in_full_length() -> None:
    assert receiver_url(f"{URL}?token=secret?") == URL
    assert receiver_url("x" * MOST_OF_URL) == "x" * MOST_OF_URL
    assert receiver_url("x" * (MOST_OF_URL + 1)) == "x" * MOST_OF_URL


def test_the_pauses_of_a_job_are_those_of_its_url_its_type_and_its_host() -> None:
    assert pauses_of_job(ALL, "http", f"{URL}?a=b", None) == [OF_HOST, OF_TYPE, OF_URL]
    assert pauses_of_job([OF_HOST, OF_URL, *ELSEWHERE], "http", URL, None) == [OF_HOST, OF_URL]
    assert pauses_of_job([OF_HOST, OF_TYPE], "http", "https://other.example/", None) == [OF_HOST, OF_TYPE]


def test_a_job_of_an_unknown_host_has_no_pause_of_a_host() -> None:
    assert pauses_of_job([OF_HOST, OF_TYPE, OF_URL], "shipped", None, None) == []
    assert pauses_of_job([OF_HOST, OF_URL], "http", None, None) == []
    assert pauses_of_job([OF_HOST], "shipped", None, "progress at hooks.example.com") == []


def test_the_note_of_a_job_that_was_put_off_names_its_host() -> None:
    note = f"{PUT_OFF}{HOST} gets no requests"
    assert pauses_of_job(ALL, "shipped", None, note) == [OF_HOST]
    assert pauses_of_job(ALL, "paid", None, note) == [OF_HOST, pause("paid"), *ELSEWHERE[:2]]
    assert pauses_of_job(ALL, "shipped", None, f"{PUT_OFF}{HOST}.evil.example gets no requests") == []


def test_a_record_is_replaced_only_if_it_is_the_present_one() -> None:
    changed = replace(OF_TYPE, strikes=2)
    assert replace_pause((), None, OF_TYPE) == (OF_TYPE,)
    assert replace_pause((), OF_TYPE, changed) is None
    assert replace_pause((OF_HOST, OF_TYPE), OF_TYPE, changed) == (OF_HOST, changed)
    assert replace_pause((OF_HOST, changed), OF_TYPE, None) is None
    assert replace_pause((OF_HOST, changed), None, OF_TYPE) is None
    assert replace_pause((OF_HOST, changed), changed, None) == (OF_HOST,)


def test_a_store_keeps_the_records_that_end_last_in_the_order_of_receivers() -> None:
    many = [pause(host=f"{number:04d}", until=10_000 - number) for number in range(MOST_PAUSES + 5)]
    assert kept_pauses(reversed(many)) == tuple(many[:MOST_PAUSES])
