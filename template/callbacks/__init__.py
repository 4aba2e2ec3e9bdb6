"""What lands on disk and on the screen."""
