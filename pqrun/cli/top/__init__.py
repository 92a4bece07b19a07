"""``pqrun top``: queues, throughput, workers and the slowest jobs, again and again."""
