"""Where jobs are kept: adapters of the `Engine` protocol that know nothing of each other."""
