"""Processes: launching, the DDP strategy, collectives and the catalogue of failures."""
