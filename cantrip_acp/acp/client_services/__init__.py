"""What a client offers to the gates of a session: its files, its terminals, and forms for its user."""
