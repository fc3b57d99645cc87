"""Which application or store a command is about: command line, environment, pyproject.toml, in this order."""

import json
from pathlib import Path

from tests.cli.shop_program import CommandResult, ShopProgram

FAILURE, USAGE, UNAVAILABLE = 1, 2, 3


def ids(output: object) -> list[str]:
    assert isinstance(output, dict)
    return [job["id"] for job in output["jobs"]]


def other_store(shop: ShopProgram, job_id: str) -> str:
    """Make another store, with one job."""
    folder = shop.folder / job_id
    folder.mkdir()
    other = shop.in_folder(folder)
    other.submit({"order_id": 1}, id=job_id)
    return other.url


def test_a_command_without_a_store_prints_all_ways_to_name_one(shop: ShopProgram) -> None:
    done = shop.run("jobs", "list")
    assert done.code == USAGE
    assert done.error_line.startswith(
        "mainspring jobs list: no application or store is named; give --app module:app or --url "
    )
    for way in ("MAINSPRING_APP", "MAINSPRING_URL", "[tool.mainspring]", "mainspring jobs list --help"):
        assert way in done.error_line


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(shop: ShopProgram) -> None:
    first, second = other_store(shop, "first"), other_store(shop, "second")
    other_store(shop, "third")
    (shop.folder / "pyproject.toml").write_text('[tool.mainspring]\nurl = "sqlite:///third/shop.db"\n')
    listing = ("jobs", "list", "--json")
    assert ids(shop.run(*listing, "--url", first, MAINSPRING_URL=second).json) == ["first"]
    assert ids(shop.run(*listing, MAINSPRING_URL=second).json) == ["second"]
    assert ids(shop.run(*listing).json) == ["third"]


def test_a_url_in_pyproject_that_names_no_store_is_refused_as_it_stands_there(shop: ShopProgram) -> None:
    (shop.folder / "pyproject.toml").write_text('[tool.mainspring]\nurl = "sqlite://orders.db"\n')
    done = shop.run("jobs", "list")
    assert done.code == USAGE
    assert "url 'sqlite://orders.db': no engine serves this URL" in done.error_line


def test_a_url_in_pyproject_is_relative_to_it_and_an_application_is_found_beside_it(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1}, id="order-1")
    below = shop.folder / "deep" / "below"
    below.mkdir(parents=True)
    text = '[tool.mainspring]\napp = "shop:app"\nurl = "sqlite:///shop.db"\n'
    (shop.folder / "pyproject.toml").write_text(text)
    without_url(shop)
    assert shop.run("submit", "cancel_order", "order_id=2", "--id", "order-2", folder=below).output == "order-2\n"
    assert ids(shop.run("jobs", "list", "--json", folder=below).json) == ["order-2", "order-1"]


def without_url(shop: ShopProgram) -> None:
    """Let the code of the shop name no store."""
    module = shop.folder / "shop.py"
    module.write_text(module.read_text().replace('"sqlite:///shop.db", ', ""))


def test_every_command_uses_the_store_in_the_code_and_a_worker_says_that_the_environment_differs(
    shop: ShopProgram,
) -> None:
    url = other_store(shop, "other")
    done = shop.run(
        "submit", "cancel_order", "order_id=1", "--id", "order-1", "--app", "shop:app", MAINSPRING_URL=url
    )
    assert done.output == "order-1\n"
    assert "the store in the code is used, not that of MAINSPRING_URL: " in done.errors
    assert f"MAINSPRING_URL names {url}; to end this warning, " in done.errors
    listed = shop.run("jobs", "list", "--json", MAINSPRING_APP="shop:app", MAINSPRING_URL=url)
    assert [job["id"] for job in json.loads(listed.output)["jobs"]] == ["order-1"]
    found = shop.run("doctor", "--json", MAINSPRING_APP="shop:app", MAINSPRING_URL=url)
    (finding,) = [each for each in json.loads(found.output)["findings"] if each["check"] == "url"]
    assert finding["severity"] == "warning"
    assert finding["what"].endswith(f"and MAINSPRING_URL names {url}")


def test_an_application_without_a_url_uses_that_of_the_environment(shop: ShopProgram) -> None:
    without_url(shop)
    url = other_store(shop, "other")
    listing = ("jobs", "list", "--json")
    assert ids(shop.run(*listing, "--app", "shop:app", MAINSPRING_URL=url).json) == ["other"]
    assert ids(shop.run(*listing, MAINSPRING_APP="shop:app", MAINSPRING_URL=url).json) == ["other"]


def test_the_default_file_of_this_folder_needs_no_name(shop: ShopProgram) -> None:
    without_url(shop)
    shop.run("submit", "cancel_order", "order_id=1", "--id", "order-1", "--app", "shop:app")
    assert ids(shop.run("jobs", "list", "--json").json) == ["order-1"]


def test_doctor_says_which_place_names_the_store(shop: ShopProgram) -> None:
    url = other_store(shop, "other")

    def is_said(place: str, done: CommandResult) -> bool:
        return f"the store is named by {place}" in done.output

    assert is_said("--url", shop.run("doctor", "--url", url))
    assert is_said("MAINSPRING_URL", shop.run("doctor", MAINSPRING_URL=url))
    (shop.folder / "mainspring.db").write_bytes((shop.folder / "other" / "shop.db").read_bytes())
    assert is_said("the default", shop.run("doctor"))


def test_options_may_stand_before_the_command(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1}, id="order-1")
    assert ids(shop.run("--url", shop.url, "jobs", "list", "--json").json) == ["order-1"]


def test_an_application_with_a_url_works_on_that_store(shop: ShopProgram) -> None:
    url = f"sqlite:///{shop.folder / 'other.db'}"
    done = shop.run("submit", "cancel_order", "order_id=1", "--app", "shop:app", "--url", url)
    assert done.code == 0
    assert (shop.folder / "other.db").exists()
    assert not (shop.folder / "shop.db").exists()


def test_code_that_cannot_be_imported_is_one_line_below_its_own_traceback(shop: ShopProgram) -> None:
    (shop.folder / "broken.py").write_text("raise OSError('no\\nconfiguration')\n")
    done = shop.run("jobs", "list", "--app", "broken:app")
    assert done.code == FAILURE
    first, *_, last = done.errors.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "importlib" not in done.errors
    assert (
        last
        == "mainspring: 'broken:app' cannot be imported: OSError: no configuration; correct the code, and try "
        "again"
    )


def test_looking_does_not_make_a_store(shop: ShopProgram) -> None:
    done = shop.run_on_store("jobs", "list")
    assert done.code == UNAVAILABLE
    assert done.error_line.startswith(
        f"mainspring: SQLite file {shop.folder / 'shop.db'}: there is no such file; "
    )
    assert not (shop.folder / "shop.db").exists()


def test_memory_is_refused_because_it_would_be_gone_at_once(shop: ShopProgram) -> None:
    done = shop.run("jobs", "list", "--url", "memory://")
    assert done.code == UNAVAILABLE
    assert "use a sqlite:/// or nats:// store" in done.error_line


def test_what_cannot_be_understood_is_wrong_usage(shop: ShopProgram) -> None:
    assert "no engine serves this URL" in refused(shop, "--url", "redis://x")
    assert "prefx" in refused(shop, "--url", "nats://127.0.0.1:1?prefx=shop")
    assert "there is no module 'gone'" in refused(shop, "--app", "gone:app")
    (shop.folder / "pyproject.toml").write_text("[tool.mainspring]\napp = 7\n")
    assert "app in [tool.mainspring] must be a text, got 7" in refused(shop)


def refused(shop: ShopProgram, *where: str) -> str:
    done = shop.run("jobs", "list", *where)
    assert done.code == USAGE
    return done.error_line


def test_a_file_that_is_no_store_is_unavailable(shop: ShopProgram, tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_text("this is not a database, and long enough to be looked at" * 20)
    done = shop.run_on_store("jobs", "list")
    assert done.code == UNAVAILABLE
    assert "shop.db" in done.error_line
