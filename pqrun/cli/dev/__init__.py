"""``pqrun dev``: a database, a worker, and the worker anew after each change of the code."""
