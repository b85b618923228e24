"""Programs for those who write the course. None of them is needed to read it."""
