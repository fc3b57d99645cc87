"""The checks of `mainspring doctor`: they examine the machine, the store and its content, and change nothing.

`examine(app)` returns a `Report` of findings, each with its severity, why it matters, and what to do.
"""

from mainspring.doctor.examination import examine
from mainspring.doctor.findings import Finding, Report, Severity

__all__ = ["Finding", "Report", "Severity", "examine"]
