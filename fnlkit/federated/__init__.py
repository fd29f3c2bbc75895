"""The round: clients, the server, the engines that run clients, and the privacy of what leaves a client."""
