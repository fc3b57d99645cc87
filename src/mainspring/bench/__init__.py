"""Measuring the user's own machine and engine, on stores of our own that are gone afterwards."""
