"""One question to some 500 authors, and a hundred texts that are written after the answer."""
