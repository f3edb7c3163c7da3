"""client_apps."""
