"""What runs at the server and sees replies only."""
