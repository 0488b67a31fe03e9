"""Rented and own GPU boxes: rent, prepare, run, fetch, destroy."""
