"""What travels between server and nodes, and how much of it at a time."""
