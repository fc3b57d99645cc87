"""The demonstration: a shop whose unpaid orders time out. Like any application, it uses the public names only."""
