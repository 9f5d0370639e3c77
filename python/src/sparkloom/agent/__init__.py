"""The one process that the service manager runs on every node: owns the local rank, speaks with its peers."""
