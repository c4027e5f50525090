"""What loaders and datasets read: encoded pictures, and what is known of each."""
