"""Moves jobs from one store to another: from a SQLite file to NATS."""

from mainspring.migration.migrator import Migrator
from mainspring.migration.plan import MigrationPlan, plan_migration
from mainspring.migration.undo import MigrationUndo, require_move

__all__ = ["MigrationPlan", "MigrationUndo", "Migrator", "plan_migration", "require_move"]
