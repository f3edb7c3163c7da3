"""What a run happens in: the app in its folder, and the processes of its server and nodes.

May import every room but `cli`, `comparison` and `dry_run`.
"""
