"""The HTTP server: health probes, metrics, and the API. It needs the extra: `mainspring[web]`.

The API and the dashboard grow on it. `app.asgi` makes the ASGI application, `server.py` runs it under uvicorn.
"""
