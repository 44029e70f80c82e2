"""The words that producers, bridge and listeners speak; pure, and loaded without any SDK or web server."""
