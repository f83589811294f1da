"""The server: every head of several models over HTTP, in three dialects, without torch."""
