"""What tests of checks say: a check speaks, or keeps silent."""

from mainspring.doctor.findings import Finding, Findings, Severity


def listed(found: Findings) -> list[Finding]:
    """What a check returned, as a list."""
    return [found] if isinstance(found, Finding) else list(found)


def speaks(found: Findings, severity: Severity, *words: str) -> Finding:
    """The one finding that is worse than in order: this bad, with these words, and with something to do."""
    (finding,) = [finding for finding in listed(found) if finding.severity is not Severity.OK]
    assert finding.severity is severity
    for word in words:
        assert word in finding.what, finding.what
    assert finding.remedy or severity is Severity.INFO
    assert finding.reason or severity is Severity.INFO
    return finding


def is_silent(found: Findings) -> bool:
    """Whether everything is in order, and a check says what."""
    findings = listed(found)
    return bool(findings) and all(f.severity is Severity.OK and f.what and not f.remedy for f in findings)
