"""The client: samples, labels, memory, local training, losses and drift terms; everything that runs next to the data."""
