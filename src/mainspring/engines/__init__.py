"""Engines that store jobs: implementations of the `Engine` protocol that do not import each other."""
