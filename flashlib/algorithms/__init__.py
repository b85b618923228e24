"""The subject of the course, one file an idea. This is the lowest floor: it imports nothing else of flashlib."""
