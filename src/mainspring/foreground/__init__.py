"""Runs a worker as the main program of a process: its messages, its published health, and its signals."""
