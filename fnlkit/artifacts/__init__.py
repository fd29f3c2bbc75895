"""Files and pipes between commands: federation and run, provenance, the ledger, and readers of untrusted files (`safe`)."""
