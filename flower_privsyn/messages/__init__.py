"""What travels between server and nodes, and how much of it at a time.

May import `data`, `queries`, `secure_aggregation`, `models` and `privacy`: what both halves know.
"""
