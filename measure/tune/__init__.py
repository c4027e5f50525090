"""``onestream bench tune``: the serving options that are fastest on this machine with the user's images."""
