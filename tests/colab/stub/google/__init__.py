"""Stands in for Colab's own package in tests/test_colab.py."""
