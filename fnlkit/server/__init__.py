"""The server: its one door to the clients, optimisers, aggregation, selection of cohorts."""
