"""What several floors of tests share: databases, rows in any state, waiting for conditions."""
