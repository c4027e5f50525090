"""``onestream tune``: which serving options are fastest on this machine with the user's images, found by measuring."""
