"""The demonstration `mainspring demo`: a shop whose unpaid orders time out. It uses only the public API."""
