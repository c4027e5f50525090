"""Text: where its lines are, which way up they are, and what they say."""
