"""Assertions about the findings of a check."""

from mainspring.doctor.findings import Finding, Findings, Severity


def findings_of(found: Findings) -> list[Finding]:
    """Return the findings of a check as a list."""
    return [found] if isinstance(found, Finding) else list(found)


def assert_finding(found: Findings, severity: Severity, *words: str) -> Finding:
    """Return the only finding that is not OK; assert its severity, its words, its reason and its remedy."""
    (finding,) = [finding for finding in findings_of(found) if finding.severity is not Severity.OK]
    assert finding.severity is severity
    for word in words:
        assert word in finding.what, finding.what
    assert finding.remedy or severity is Severity.INFO
    assert finding.reason or severity is Severity.INFO
    return finding


def is_all_ok(found: Findings) -> bool:
    """Return whether a check found only things that are in order, and named them."""
    findings = findings_of(found)
    return bool(findings) and all(f.severity is Severity.OK and f.what and not f.remedy for f in findings)
