"""Prove an answer: discriminating inputs, and an error held beside a budget."""
