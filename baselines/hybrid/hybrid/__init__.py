"""The hybrid: a joint sketch makes the student, and DP-FTRL trains it on the devices."""
