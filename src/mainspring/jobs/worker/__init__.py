"""The worker: fetches leases, runs handlers, stores their outcomes, and keeps itself and the store in order."""
