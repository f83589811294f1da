"""Text files to a token store on disk."""
