"""The HTTP server: health probes, metrics, the API and the dashboard. It needs the extra: `mainspring[web]`.

`app.asgi` makes the ASGI application, `server.py` runs it under uvicorn.
"""
