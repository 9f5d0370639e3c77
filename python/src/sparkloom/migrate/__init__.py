"""From the environment file of a published recipe to a cluster file."""
