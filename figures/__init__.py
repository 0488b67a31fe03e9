"""Figures and tables drawn from committed results alone."""
