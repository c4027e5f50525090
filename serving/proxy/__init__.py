"""nginx in front of a server: its configuration, its tokens, and its process."""
