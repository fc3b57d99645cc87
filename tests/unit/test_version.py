"""The version in the source is the version of the package."""

import tomllib
from pathlib import Path

from mainspring.version import VERSION


def test_the_source_has_the_version_of_the_package() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    assert project["project"]["version"] == VERSION
