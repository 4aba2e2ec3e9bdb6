"""Data sets: one file a format, and the LightningDataModule they share."""
