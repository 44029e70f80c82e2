"""The web page of the bridge: its files, its views, dead letters and sign-in."""
