"""Real sites over Flower: the project, the client application, and the ledger of sent replies."""
