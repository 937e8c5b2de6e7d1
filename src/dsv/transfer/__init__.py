"""The upload and the download pipeline."""
