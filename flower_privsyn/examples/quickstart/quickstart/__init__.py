"""PrE-Text on real speeches, offline."""
