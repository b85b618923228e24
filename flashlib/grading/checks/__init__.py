"""Checks, one module a chapter: what each exercise is tried on and how the answers are judged."""
