"""``onestream bench``: how much this machine serves, beside the usual way of writing it."""
