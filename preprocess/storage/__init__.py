"""Files of images that others made: behind addresses, in tar files, in Parquet files."""
