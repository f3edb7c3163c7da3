"""The joint sketch as a Flower app: one question, public text chosen by its answer, a student."""
