"""Labelled data: its files, the kinds of tasks and their heads, losses and scores."""
