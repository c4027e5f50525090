"""Pictures with masks: files and their loader."""
