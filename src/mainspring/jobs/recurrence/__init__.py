"""Recurring jobs: cron and interval rules, stored schedules, and the thread that fires them."""
