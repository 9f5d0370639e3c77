"""Why two requests do not share a cached prefix: the first differing token, its cause, what it costs."""
