"""Failed assertions of the shared checks show their values."""

import pytest

pytest.register_assert_rewrite("tests.old_stores.contents")
