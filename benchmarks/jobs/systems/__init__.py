"""The systems that are measured, each behind the same few calls."""
