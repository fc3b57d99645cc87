"""Engines are found by the scheme of a URL, those of other packages too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mainspring import EngineUnavailable, Mainspring
from mainspring.engines.registry import BUILT_IN, check_url, provider_for, schemes
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.provider import timeout_of

TOY = Path(__file__).parents[2] / "data" / "toy_engine"


def store_name(url: str) -> str:
    return provider_for(url).store_name(url)


def test_the_examples_of_every_scheme_are_urls_of_its_engine() -> None:
    assert schemes() == list(BUILT_IN)
    for scheme in BUILT_IN:
        provider = provider_for(f"{scheme}://")
        examples = re.findall(r"'(.*?)'", provider.examples)
        assert examples
        for url in examples:
            assert provider_for(check_url(url)).__class__ is provider.__class__


@pytest.mark.parametrize("url", ["redis://host", "orders.db", "sqlite", "://x", ""])
def test_an_unknown_scheme_is_refused_with_examples_of_all_engines(url: str) -> None:
    with pytest.raises(EngineUnavailable) as refused:
        Mainspring(url)
    assert str(refused.value) == (
        f"url {url!r}: no engine serves this URL; use 'sqlite:///orders.db' (relative), "
        "'sqlite:////srv/orders.db' (absolute), 'nats://host:4222' or 'memory://'"
    )


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:/orders.db", "memory://name", "nats://", "tls://"]
)
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(EngineUnavailable):
        Mainspring(url)


def test_the_url_of_a_file_may_set_the_timeout_of_calls(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db?timeout=2.5"
    assert store_name(url) == f"sqlite:///{tmp_path}/shop.db"
    assert provider_for(url).resolve("sqlite:///shop.db?timeout=2.5", tmp_path) == url
    assert timeout_of(url) == 2.5
    assert timeout_of("sqlite:///shop.db") == 30
    with Mainspring(url) as app:
        app.counts()
    assert (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    "setting", ["timeout=", "timeout=0", "timeout=-1", "timeout=nan", "timeout=inf", "lease=5"]
)
def test_an_invalid_setting_of_a_file_is_refused(setting: str) -> None:
    with pytest.raises(EngineUnavailable, match=r"shop\.db: .*the only setting is \?timeout="):
        Mainspring(f"sqlite:///shop.db?{setting}")


def test_the_path_of_a_file_may_have_a_question_mark(tmp_path: Path) -> None:
    with Mainspring(f"sqlite:///{tmp_path}/what?.db") as app:
        app.counts()
    assert (tmp_path / "what?.db").exists()


def test_no_password_is_in_the_error_for_an_unknown_scheme() -> None:
    with pytest.raises(EngineUnavailable) as refused:
        Mainspring("redis://ann:secret@host")
    assert "secret" not in str(refused.value)


def test_a_url_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"url must be a string such as 'sqlite:///orders.db', got 5"):
        Mainspring(5)  # type: ignore[arg-type]


def test_a_store_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert store_name("sqlite:///shop.db") == store_name(f"sqlite:///{tmp_path / 'shop.db'}")
    assert store_name("nats://ann:secret@b:4222,a") == store_name("nats://a:4222,b:4222?prefix=x")
    assert store_name("nats://a") != store_name("nats://b")
    assert "secret" not in store_name("nats://ann:secret@b")
    assert store_name("memory://") == "memory://"


def test_no_url_is_shown_with_a_password() -> None:
    for scheme in BUILT_IN:
        url = f"{scheme}://ann:secret@host/path"
        assert "secret" not in provider_for(url).public_url(url)


def test_an_engine_of_another_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(TOY)
    assert schemes() == [*BUILT_IN, "toy"]
    with Mainspring(f"toy:///{tmp_path}/orders.toy") as app:
        engine = app.manager().engine
        assert isinstance(engine, SqliteEngine)
        assert engine.description == f"toy {tmp_path}/orders.toy"


def test_a_package_that_cannot_be_imported_is_named_and_hides_no_other_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[mainspring.engines]\nbroken = no_such_module:Provider\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EngineUnavailable, match=r"no_such_module: it cannot be loaded .* reinstall the package"):
        Mainspring("broken://host")
    with pytest.raises(EngineUnavailable, match=r"use 'sqlite:///orders\.db'"):
        Mainspring("unknown://host")
