"""One question to 600 authors, and a student for their field."""
