"""Recipes and published tables: plan, run, resume, merge and tabulate."""
