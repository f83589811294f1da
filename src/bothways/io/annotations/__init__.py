"""What people and their tools annotate: words with tags, spans, choices, questions on passages."""
