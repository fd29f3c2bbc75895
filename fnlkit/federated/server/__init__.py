"""The server: communication with clients, optimizers, aggregation, and selection of cohorts."""
