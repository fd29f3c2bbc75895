"""The server: its one door to the clients, optimizers, aggregation, selection of cohorts."""
