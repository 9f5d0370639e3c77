"""Stand-ins that tests may use: a fake engine, stub ranks. Never part of serving."""
