"""What each page reads, and what its forms do."""
