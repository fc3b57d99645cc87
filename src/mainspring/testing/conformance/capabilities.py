"""Marks tests of the conformance suite that need optional capabilities of an engine.

`needs` marks a test that only engines with these capabilities can pass. If a test class names one of them in
`lacks`, pytest does not collect the test at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mainspring.jobs.engine import Capability

Test = TypeVar("Test", bound=Callable[..., None])

MARK = "needed_capabilities"


def needs(*capabilities: Capability) -> Callable[[Test], Test]:
    """Mark a test that an engine can only pass with all of these capabilities, which not every engine has."""
    if not capabilities:
        raise TypeError("needs() without a capability has no effect; name at least one, or remove it")

    def mark(test: Test) -> Test:
        vars(test)[MARK] = frozenset(capabilities)
        return test

    return mark


def capabilities_needed_by(test: object) -> frozenset[Capability]:
    """Return the capabilities that an engine needs to pass this test."""
    needed: frozenset[Capability] = getattr(test, MARK, frozenset())
    return needed


def capabilities_needed_by_suite(suite: type) -> frozenset[Capability]:
    """Return the capabilities that any test of a suite needs, including tests that the suite leaves out."""
    return frozenset(
        capability for test in all_tests(suite).values() for capability in capabilities_needed_by(test)
    )


def hide_tests_needing(suite: type, lacks: frozenset[Capability]) -> None:
    """Hide the tests of a suite that need a missing capability from pytest, and restore the others."""
    for name, test in all_tests(suite).items():
        chosen = None if capabilities_needed_by(test) & lacks else test
        if getattr(suite, name) is not chosen:
            setattr(suite, name, chosen)


def all_tests(suite: type) -> dict[str, Any]:
    """Return all tests of a suite by name, including those that were hidden."""
    classes = reversed(suite.__mro__)
    return {
        name: test
        for part in classes
        for name, test in vars(part).items()
        if name.startswith("test_") and test is not None
    }
