"""Where labelled images come from: digits, an image folder, parquet files, the hub. One module each."""
