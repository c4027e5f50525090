"""What two sides must agree on, each thing once: names, limits, codes, texts, messages. Imports no other room."""
