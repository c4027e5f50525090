"""``onestream bulk --ray``: the same rows by any number of machines, through Ray Data."""
