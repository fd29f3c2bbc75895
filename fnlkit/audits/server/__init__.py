"""What an audit runs at the server: it sees sums and counts only, and imports nothing of fnlkit.audits.site."""
