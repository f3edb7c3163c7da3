"""The client's half: ClientApps that answer queries and say nothing else.

Nothing is imported here. Flower's simulation finds a ClientApp of this package by importing the
package in one thread, while another imports the strategies: an import of the modules at this place
could meet theirs half way, and find a module half made.
"""
