"""Runs a worker as the main program of a process: prints messages, publishes its health, reacts to signals."""
