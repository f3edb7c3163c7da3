"""FreD (Hou et al. 2023) as a Flower app: which public text is nearest to the users' text."""
