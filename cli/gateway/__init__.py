"""``onestream gateway``: plain HTTP and JSON before a running server."""
