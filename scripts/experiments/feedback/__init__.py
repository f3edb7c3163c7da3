"""How much of the users' answers is left after the noise: see docs/feedback_experiment.md."""
