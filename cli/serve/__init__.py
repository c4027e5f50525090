"""``onestream serve``: the server, and what it prints."""
