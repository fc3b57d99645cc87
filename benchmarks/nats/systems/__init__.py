"""The systems that are measured on servers, each behind the same few calls."""
