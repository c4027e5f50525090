"""``onestream top``: what a running server does now, read from its metrics."""
