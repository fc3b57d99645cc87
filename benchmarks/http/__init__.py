"""The HTTP server, with real sockets and keep-alive connections."""
