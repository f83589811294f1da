"""The families of encoders: their axes, and their files."""
