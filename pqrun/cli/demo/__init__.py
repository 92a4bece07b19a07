"""``pqrun demo``: index the source files of Python's own library, one typed job each, and check the sums."""
