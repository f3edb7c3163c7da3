"""What a run happens in: Flower's processes, their progress, and the terminal that shows it."""
