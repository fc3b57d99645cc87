"""Tests of the dashboard in a browser: a package, because fixtures of the scope "package" end with its tests."""
