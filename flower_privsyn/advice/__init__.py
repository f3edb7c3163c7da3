"""Which method, by what was measured elsewhere: `privsyn advise`, and docs/measured_cells.md."""
