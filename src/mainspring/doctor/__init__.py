"""Is this machine, this store and what is in it in order? Checks that look, judge, and change nothing.

`examine(app)` returns a `Report`: what was found, how bad it is, why it matters and what to do.
"""

from mainspring.doctor.examination import examine
from mainspring.doctor.findings import Finding, Report, Severity

__all__ = ["Finding", "Report", "Severity", "examine"]
