"""The dashboard: pages rendered on the server, with live updates. `page.py` says how to add a page."""
