"""Finds CPython's own tests of executors: `test.test_concurrent_futures` of the running interpreter.

Many installations leave them out. Debian has them in the package libpython3.X-testsuite. A Python of the same
version that was installed in another way uses these files, too.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

NAME = "test.test_concurrent_futures"
VERSION = "{}.{}".format(*sys.version_info)
DEBIAN = Path(f"/usr/lib/python{VERSION}/test")
REMEDY = f"CPython's tests of executors are not installed; on Debian: apt install libpython{VERSION}-testsuite"


def find_suite() -> str | None:
    """Make the tests importable. Return the folder that was added to `test.__path__`, "" if none was necessary.

    Return None if there are no such tests.
    """
    test = import_module("test")
    for folder in ("", str(DEBIAN)):
        if folder:
            test.__path__.append(folder)
        if find_spec(NAME) is not None:
            return folder
    return None


def module_of(name: str) -> ModuleType:
    """Return a module of the tests. Python 3.11 has all of them in one."""
    package = import_module(NAME)
    return import_module(f"{NAME}.{name}") if hasattr(package, "__path__") else package


if __name__ == "__main__":
    sys.exit(None if find_suite() is not None else REMEDY)
