"""The HTTP API under /api/v1. Each endpoint is declared once: see `endpoint.py`.

The declaration serves the router, the OpenAPI document and the table of rights. Endpoints are methods of small
classes, one module for each subject, and `routes.py` collects them.
"""
