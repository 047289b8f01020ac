"""Where the agents of a run live: on devices, in rows of those that took part, in files, or one by one in Python."""
