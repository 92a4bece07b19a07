"""``pqrun dev``: a database, a worker and the web pages, and both anew after each change of the code."""
