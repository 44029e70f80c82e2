"""The page that the bridge shows to people, and what it is told."""
