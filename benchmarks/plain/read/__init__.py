"""The plain reader: rapidocr in one model."""
