"""Durable jobs beside other systems that keep theirs in SQLite."""
