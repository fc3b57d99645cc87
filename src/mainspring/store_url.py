"""The rule that chooses the store of an application: for `Mainspring()`, every command and all child processes.

The first of these places that names a URL decides:

1. the option `--url` of a command; a child process of a worker uses the store of its worker,
2. the URL in the code, `Mainspring("sqlite:///orders.db")`,
3. the environment variable `MAINSPRING_URL`,
4. `url` in `[tool.mainspring]` of the nearest `pyproject.toml`, in the working directory or above it,
5. `sqlite:///mainspring.db`.

A relative path of a SQLite file is relative to the working directory. In `pyproject.toml`, it is relative to the
folder of that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from mainspring.engines.registry import check_url, provider_for
from mainspring.errors import EngineUnavailable

DEFAULT_URL = "sqlite:///mainspring.db"
VARIABLE = "MAINSPRING_URL"
SECTION = "[tool.mainspring]"
CONFLICT_REMEDY = "remove the URL from the code, or unset MAINSPRING_URL"


class UrlSource(StrEnum):
    """The place that names the URL of a store."""

    OPTION = "--url"
    CODE = "the code"
    ENVIRONMENT = VARIABLE
    CONFIGURATION = f"{SECTION} of pyproject.toml"
    DEFAULT = "the default"
    WORKER = "the worker of this process"


class StoreChoice(Struct, frozen=True):
    """The URL of the store, the place that names it, and a URL in the environment that the code overrides."""

    url: str
    source: UrlSource
    unused_url: str | None = None
    """The value of `MAINSPRING_URL`, if the code names another store."""

    @property
    def conflict(self) -> str | None:
        """A sentence that names both stores, if the code and the environment name different stores; else None."""
        if self.unused_url is None:
            return None
        return f"the code names the store {_public(self.url)}, and MAINSPRING_URL names {_public(self.unused_url)}"


class Configuration(Struct, frozen=True):
    """The content of `[tool.mainspring]` in the nearest `pyproject.toml`, and the folder of that file.

    A value that the file does not set is None. Without a file, all fields are None.
    """

    app: str | None = None
    url: str | None = None
    folder: Path | None = None


def choose_store(in_code: str | None, environment: Mapping[str, str], folder: Path) -> StoreChoice:
    """Choose the store of an application: from its code, the environment, `pyproject.toml`, or the default.

    `in_code` is the URL that its code names, or None; `folder` is the working directory. Raises
    `EngineUnavailable` for a URL that no engine supports, or if `pyproject.toml` is needed and cannot be read.
    """
    in_environment = environment.get(VARIABLE) or None
    if in_code is not None:
        check_url(in_code)
        differs = in_environment is not None and not is_same_store(in_code, in_environment)
        return StoreChoice(in_code, UrlSource.CODE, in_environment if differs else None)
    if in_environment is not None:
        return StoreChoice(check_url(in_environment), UrlSource.ENVIRONMENT)
    configured = read_configuration(folder).url
    if configured is not None:
        return StoreChoice(check_url(configured), UrlSource.CONFIGURATION)
    return StoreChoice(DEFAULT_URL, UrlSource.DEFAULT)


def is_same_store(url: str, other: str) -> bool:
    """Return whether two URLs name the same store. If a URL names no store, return False."""
    try:
        return provider_for(url).store_name(url) == provider_for(other).store_name(other)
    except EngineUnavailable:
        return False


def read_configuration(folder: Path) -> Configuration:
    """Read `[tool.mainspring]` of the nearest `pyproject.toml`, in a folder or above it.

    If there is no such file, return an empty configuration. Raises `EngineUnavailable` if the file cannot be read,
    or if a value is not a text.
    """
    for each in (folder, *folder.parents):
        file = each / "pyproject.toml"
        if file.is_file():
            return _read(file)
    return Configuration()


def _read(file: Path) -> Configuration:
    import tomllib  # noqa: PLC0415 - slow to import, and most processes read no file

    try:
        section = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("mainspring", {})
    except (ValueError, OSError) as error:  # ValueError if the content is not UTF-8 or not TOML
        raise _unreadable(file, f"the file cannot be read: {error}") from error
    url = _read_text(section, "url", file)
    if url is not None:
        url = _resolve(url, file.parent)
    return Configuration(_read_text(section, "app", file), url, file.parent)


def _resolve(url: str, folder: Path) -> str:
    """Return the URL with a relative path resolved against the folder; return an invalid URL unchanged."""
    try:
        return provider_for(check_url(url)).resolve(url, folder)
    except EngineUnavailable:
        return url  # an invalid URL is reported when it is used


def _read_text(section: dict[str, Any], name: str, file: Path) -> str | None:
    value = section.get(name)
    if value is not None and not isinstance(value, str):
        raise _unreadable(file, f"{name} in {SECTION} must be a text, got {value!r}")
    return value


def _unreadable(file: Path, reason: str) -> EngineUnavailable:
    return EngineUnavailable(
        engine=f"configuration file {file}",
        reason=reason,
        remedy=f"correct the file, or name the store with --url or {VARIABLE}",
    )


def _public(url: str) -> str:
    """Return a store's URL for messages: without credentials, and with the absolute path of a file."""
    try:
        return provider_for(url).store_name(url)
    except EngineUnavailable:
        return repr(url.rpartition("@")[2])
