"""What Python users hold: a loaded model, and a check of folders."""
