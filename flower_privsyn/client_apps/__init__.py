"""The client's half: ClientApps that answer queries and say nothing else.

May import `messages`, `data`, `training` and what these import: no `generation`, no `run`, and but
for `flower_privsyn.client_apps.training` nothing that loads a model to train.

This file imports nothing. Flower's simulation finds a ClientApp of this package by importing the
package in one thread, while another imports the strategies: an import of the modules at this place
could meet theirs half way, and find a module half made.
"""
