"""Moves jobs from one store to another: from a SQLite file to NATS."""

from mainspring.moving.mover import Mover
from mainspring.moving.plans import Plan, plan
from mainspring.moving.undoing import Undoing, require_move

__all__ = ["Mover", "Plan", "Undoing", "plan", "require_move"]
