"""PrE-Text on your own file."""
