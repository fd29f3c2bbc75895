"""What an audit runs at a site: it reads samples, and nothing here imports fnlkit.audits.server."""
