"""``onestream bench``: measures what this machine serves, and finds the serving options that are fastest on it."""
