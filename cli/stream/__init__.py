"""``onestream stream``: videos streamed to a running server, and their results as they come."""
