"""What runs at a site and reads samples; nothing here imports fnlkit.sites.server."""
