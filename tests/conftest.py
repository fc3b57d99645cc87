"""Settings of all tests: one profile of Hypothesis.

Examples have no deadline: on a busy machine any of them may take long. They are random; a failure prints a line
`@reproduce_failure(...)` that repeats it.
"""

from hypothesis import settings

settings.register_profile("mainspring", parent=settings.get_profile("default"), deadline=None, print_blob=True)
settings.load_profile("mainspring")
