"""Speed, beside the library, with the commands that produced every printed figure."""
