"""Galleries of known mistakes, one module a chapter: wrong on purpose, each with what to tell its author."""
