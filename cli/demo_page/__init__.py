"""``onestream demo page``: see what the network saw of one picture, its answer, and where the time went."""
