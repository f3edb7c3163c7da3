"""Which method, by what was measured elsewhere: `privsyn advise`."""
